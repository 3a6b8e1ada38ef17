"""Fill the template and write the file."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from safexplain._files import write_atomically
from safexplain.audit.report import figures, maps, tables
from safexplain.audit.report.model import NATIVE, ReportData
from safexplain.verdict import words
from safexplain.verdict.certificate.write import SUBJECT_DATA
from safexplain.verdict.guarantee import RocBound

COMMAND = "command"
"""Row of the provenance that is also shown as the way to reproduce the audit."""


def render(report: ReportData) -> str:
    """The report as one HTML document: no scripts, nothing loaded, the same text for the same input."""
    results = [c.result for c in report.configurations]
    least = figures.lower_end(results)
    curves = []
    bound = None if report.privacy is None or report.audited.result.implied is None else RocBound.of(report.privacy)
    for i, configuration in enumerate(report.configurations):
        compare = results[0] if i > 0 else None
        figure = figures.roc_figure(configuration.result, least, compare=compare, bound=bound, salt=f"roc-{i}")
        curves.append((configuration, figure))
    audited = report.audited.result
    return (
        _environment()
        .get_template("template.html.j2")
        .render(
            report=report,
            audited=report.audited,
            result=audited,
            alone=audited.policy.release == "prediction",
            facts=tables.facts(report.audited),
            controlled=tables.with_controls(report.configurations),
            limits=report.limits,
            levels=tables.level_table(audited),
            targets=tables.target_table(audited),
            causes=tables.cause_table(report.root_cause),
            bound=bound,
            words=words,
            native=NATIVE,
            configurations=report.configurations,
            hardened=[c for c in report.configurations if c.utility is not None],
            attacked=tables.attack_tables(report.configurations),
            tables=tables,
            parts=tables.part_tables(audited),
            subject=SUBJECT_DATA.get(report.subject_data or "", ""),
            curves=curves,
            strips=_strips(report),
            signs=maps.has_signs(report.pictures) if report.pictures else (False, False),
            commands=[v for k, v in report.provenance.items() if k.casefold() == COMMAND],
            provenance=[(k, v) for k, v in report.provenance.items() if k.casefold() != COMMAND],
        )
    )


def write_report(path: str | Path, report: ReportData) -> Path:
    """Render and write, all or nothing: an older report stays until the new one is complete; InputError if it cannot
    be written (no such folder, no permission, disk full)."""
    raw = render(report).encode("utf-8", errors="replace")
    size = f"{len(raw) / 1e6:.1f} MB"
    hint = f"; name a file in an existing folder that this user may write to, with {size} free"
    return write_atomically(path, raw, "the report", hint)


def _strips(report: ReportData) -> list[tuple[str, list[tuple[str, str]]]]:
    if report.pictures is None:
        return []
    name = "released" if report.audited.name == NATIVE else report.audited.name
    return maps.strips(report.pictures, name)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("safexplain.audit.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
