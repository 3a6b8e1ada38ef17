"""The outcome of an audit: the verdict on the release, the native result, and the files that report them."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import file_sha256
from safexplain._files import make_folder, write_atomically
from safexplain._versions import versions
from safexplain.audit.report import figures, tables
from safexplain.audit.report.tables import ENDPOINT, NATIVE, Configuration, Pictures, ReportData
from safexplain.audit.signals import Signals
from safexplain.audit.usefulness import Utility
from safexplain.errors import RefusedError
from safexplain.native_maps import Finding
from safexplain.verdict import words
from safexplain.verdict.certificate.write import SUBJECT_DATA, statement, write_json
from safexplain.verdict.guarantee import RocBound
from safexplain.verdict.judgement import Verdict
from safexplain.verdict.result import AuditResult

MAX_PICTURED = 6  # examples pictured in the report


@dataclass(frozen=True, eq=False)
class AuditRun:
    """The results of an audit, native and hardened, with everything that its files state.

    Args:
        signals: name of a configuration -> the attacked signals.
        report: contents of report.html; digests are added once the signals are written.
        stated: further arguments of `safexplain.verdict.certificate.write.statement`.
        findings: native maps of the targets that cannot be right, also listed in the notes.
        next_look: approximate reference models, scored examples and seconds of a further look that was not started
            because it would have ended too late (`AuditOptions.seconds`); None: there is none.
    """

    signals: Mapping[str, Signals]
    report: ReportData
    stated: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()
    next_look: tuple[int, int, float] | None = None

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """All releases, in the report's order; the last one is judged."""
        return self.report.configurations

    @property
    def judged(self) -> Configuration:
        """The configuration that is judged."""
        return self.report.audited

    @property
    def result(self) -> AuditResult:
        """The result on the judged release."""
        return self.judged.result

    @property
    def native(self) -> AuditResult:
        """The result on the native explanations.

        Raises:
            RefusedError: an endpoint was audited; its native explanations are unknown.
        """
        if self.configurations[0].name == ENDPOINT:
            raise RefusedError(
                "an endpoint has no known native explanations: only its answers were audited; read .result"
            )
        return self.configurations[0].result

    @property
    def verdict(self) -> Verdict:
        """certified, leak or inconclusive."""
        return self.result.verdict

    @property
    def exit_code(self) -> int:
        """Of the command line: 0 certified, 1 leak, 3 inconclusive."""
        return self.result.exit_code

    @property
    def utility(self) -> Utility | None:
        """Agreement of the released with the native explanations; None if maps were not kept."""
        return self.judged.utility

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats for the reader."""
        return self.report.notes

    @property
    def files(self) -> dict[str, str]:
        """Files that `save` writes: kind -> name."""
        certificate = {} if self.result.quick else {"certificate": "certificate.json"}
        files = {"report": "report.html", **certificate, "signals": "signals.npz"}
        return files | ({"native_signals": "native-signals.npz"} if len(self.configurations) > 1 else {})

    def save(self, folder: str | Path) -> Path:
        """Write report.html, certificate.json, signals.npz and, for a hardened release, native-signals.npz.

        A quick look has no certificate.

        Returns:
            The folder, created if it is missing.

        Raises:
            InputError: a file cannot be written.
        """
        folder = make_folder(folder)
        self.signals[self.judged.name].save(folder / self.files["signals"])
        if len(self.configurations) > 1:
            self.signals["native"].save(folder / self.files["native_signals"])
        written = file_sha256(folder / self.files["signals"])
        stated = {**self.stated, "materials": {**self.stated["materials"], "signals.npz sha256": written}}
        if "certificate" in self.files:
            report = self.report
            certificate = statement(
                **stated,
                audit=self.result.to_dict(),
                utility=self.utility.to_dict() if self.utility else None,
                notes=report.notes,
                privacy=report.privacy.to_dict() if report.privacy else None,
                canaries=report.canaries.to_dict() if report.canaries else None,
                native=self.configurations[0].result.summary() if len(self.configurations) > 1 else None,
                limits=report.limits,
                subject_data=report.subject_data,
            )
            write_json(folder / self.files["certificate"], certificate)
        subjects = stated["subject"].items()
        provenance = {
            **{f"{name} ({kind})": value for name, digests in subjects for kind, value in digests.items()},
            **stated["materials"],
            **stated["environment"],
        }
        write_report(folder / self.files["report"], replace(self.report, provenance=provenance))
        return folder

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; the judged configuration's result at the top level."""
        names = ("references", "scored", "seconds")
        return {
            **({"next_look": dict(zip(names, self.next_look, strict=True))} if self.next_look else {}),
            **self.result.to_dict(),
            "configuration": self.judged.name,
            **({"subject_data": self.report.subject_data} if self.report.subject_data else {}),
            "utility": self.utility.to_dict() if self.utility else None,
            "compared": {c.name: c.result.to_dict() for c in self.configurations[:-1]},
            "notes": list(self.notes),
            "native_maps": [finding.to_dict() for finding in self.findings],
        }


def pictures(x: Tensor, member: NDArray[np.bool_], signals: Mapping[str, Signals], judged: str) -> Pictures | None:
    """Members and non-members in turn, if the inputs are images and the maps have their shape."""
    native = signals["native"]
    if x.dim() != 4 or x.shape[1] not in (1, 3) or native.attributions is None:
        return None
    if native.attributions.shape[2] != x[0].numel():
        return None
    sides = [np.flatnonzero(member)[: MAX_PICTURED // 2], np.flatnonzero(~member)[: MAX_PICTURED // 2]]
    chosen = np.array([i for pair in zip(*sides, strict=False) for i in pair])

    def maps(name: str) -> NDArray[Any]:
        kept = signals[name].attributions
        assert kept is not None
        return np.asarray(kept[0, chosen]).reshape(len(chosen), *x.shape[1:])

    images = x[torch.from_numpy(chosen)].numpy()
    low, high = images.min((1, 2, 3), keepdims=True), images.max((1, 2, 3), keepdims=True)
    labels = native.values["label"][0, chosen].astype(int)
    captions = tuple(
        f"predicted {label} · {'member' if member[i] else 'non-member'}"
        for i, label in zip(chosen, labels, strict=True)
    )
    released = None if judged == "native" else maps(judged)
    return Pictures((images - low) / np.maximum(high - low, 1e-12), maps("native"), released, captions)


def environment(model: nn.Module, seed: int) -> dict[str, str]:
    """Versions, hardware, seed, date and command of an audit of this model."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        **versions(),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device.type} ({hardware})",
        "seed": str(seed),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


COMMAND = "command"  # row of the provenance that reproduces the audit


def render(report: ReportData) -> str:
    """The report as one HTML document: no scripts, nothing loaded, the same text for the same input."""
    results = [c.result for c in report.configurations]
    least, shown = figures.smallest_rate(results), report.pictures
    released = "released" if report.audited.name == NATIVE else report.audited.name
    audited = report.audited.result
    bound = None if report.privacy is None or audited.implied is None else RocBound.of(report.privacy)
    curves = [
        (c, figures.roc_figure(c.result, least, compare=results[0] if i else None, bound=bound, salt=f"roc-{i}"))
        for i, c in enumerate(report.configurations)
    ]
    return (
        page_templates("safexplain.audit.report")
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
            strips=figures.strips(shown, released) if shown else [],
            signs=figures.has_signs(shown) if shown else (False, False),
            commands=[v for k, v in report.provenance.items() if k.casefold() == COMMAND],
            provenance=[(k, v) for k, v in report.provenance.items() if k.casefold() != COMMAND],
        )
    )


def write_report(path: str | Path, report: ReportData) -> Path:
    """Render and write atomically; InputError if the file cannot be written (no folder, no permission, disk full)."""
    raw = render(report).encode("utf-8", errors="replace")
    size = f"{len(raw) / 1e6:.1f} MB"
    hint = f"; name a file in an existing folder that this user may write to, with {size} free"
    return write_atomically(path, raw, "the report", hint)


@cache
def page_templates(*packages: str) -> Environment:
    """Templates of these packages, whose values are escaped and must be given."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "") for package in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
