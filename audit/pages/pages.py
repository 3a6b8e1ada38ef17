"""The pages of docs/evidence and the index in audit/README.md: the suites of each page, and how a page is made.

A page consists of the `page.md` beside its suites (prose, with `{{ NAME }}` in place of a table of `tables.TABLES`),
the docstring of each suite, and the provenance of its result. A suite needs no entry here if its `page.md` begins with
its title and its row in the index.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.run import RESULTS, ROOT, markdown
from .tables import HEAD, TABLES, pages_with_head

README = ROOT / "audit" / "README.md"
DOCS = ROOT / "docs"


@dataclass(frozen=True)
class Suite:
    """One command.

    Args:
        frozen: the last revision that holds its code, where only the result was kept; the prose says how it was done.
    """

    module: str  # what `python -m` runs
    shows: str  # in a few words
    needs: str  # files of data, or packages
    time: str  # of a full run
    result: str  # its file in audit/results, without the ending; the module's last name where it has one
    frozen: str = ""

    @property
    def command(self) -> str:
        """What is typed, and at which revision."""
        return f"`python -m {self.module}`" + (f" at revision `{self.frozen}`" if self.frozen else "")

    @property
    def source(self) -> Path:
        """The file whose docstring says how it is done."""
        path = ROOT.joinpath(*self.module.split("."))
        files = path / "suite.py", path / "__main__.py", path.with_suffix(".py")
        return next(file for file in files if file.is_file())

    def protocol(self) -> str:
        """The docstring."""
        return (ast.get_docstring(ast.parse(self.source.read_text())) or "").strip()


@dataclass(frozen=True)
class Page:
    """A page of docs/evidence."""

    name: str  # of its file
    title: str  # of the page
    suites: tuple[Suite, ...]  # in the order of the page; none: what it shows is frozen
    folder: str = ""  # of its `page.md`; default: the suite's own

    @property
    def source(self) -> Path:
        """The prose."""
        return ROOT / "audit" / (self.folder or f"suites/{self.name}") / "page.md"

    def prose(self) -> str:
        """The text of its `page.md`, without the head."""
        return re.sub(HEAD, "", self.source.read_text(), count=1)

    @property
    def path(self) -> Path:
        """The page itself."""
        return DOCS / "evidence" / f"{self.name}.md"


def _suite(module: str, shows: str, needs: str, time: str, result: str = "") -> Suite:
    return Suite(f"audit.suites.{module}", shows, needs, time, result or module.rpartition(".")[2])


def _benchmark(name: str, shows: str, time: str, needs: str = "nothing") -> Suite:
    return Suite(f"audit.benchmarks.{name}", shows, needs, time, name.replace(".", "_"))


def _page_with_head(source: Path) -> Page:
    """The page of the suite in a folder, from the head of its `page.md`: title, shows, needs and time."""
    head = re.match(HEAD, source.read_text())
    assert head is not None
    about = dict(line.split(": ", 1) for line in head[1].splitlines())
    name = source.parent.name
    return Page(name, about.pop("title"), (_suite(name, **about),))


_LISTED = (
    Page("explainers", "Every explainer", (_suite(
        "explainers", "members found from each explainer of the catalog, natively and hardened, beside the label alone,"
        " and what the hardened answer is worth, on one small task each", "`heloc.npz`", "20 min"),)),
    Page("paper_a", "The published table, and what it is", (_suite(
        "paper_a", 'the published low-rate figures of "Explaining the Model, Protecting Your Data" (Huang et al.) come'
        " from swapped axes and a wrong index; what the same scores really find", "`paper_a_ixg_signals.npz`",
        "5 min"),)),
    Page("paper_d", "DeepLeak: its hardening and its evaluation", (_suite(
        "paper_d", "what DeepLeak's evaluation finds on networks that were never trained, and by the best of 20 seeds"
        " where nothing leaks", "`cifar10.npz`", "20 min"),)),
    Page("attack_table", "Which attacks earn a row", (_suite(
        "attack_table", "what each attack finds alone, and what the stack of all finds with it and without it, on"
        " twelve releases of six tasks, chosen on one draw and confirmed on another",
        "`heloc.npz`, `adult.npz`, `agnews_test.npz`, `cifar10.npz` (digits: nothing)", "20 min"),)),
    Page("releases", "What may be released", (_suite(
        "releases", "what each format of a release adds to the labels of the same queries, asked once and often, and"
        " what is left to read, beside models of public data; five tasks and six explainers",
        "`cifar10.npz`, `gtsrb.npz`, `heloc.npz` (`--task digits`: nothing)", "60 min (`--full`: a GPU)"), _suite(
        "releases", "with `--order`: what the order of a set adds", "`cifar10.npz`, `heloc.npz`", "10 min",
        "releases_order"))),
    Page("dithering", "Patience, and limits on looks", (_suite(
        "dithering", "how many dithered queries about one example a service's budget lets through, and how many honest"
        " questions it takes for such", "`heloc.npz`, `cifar10.npz` (`--task digits`: nothing)", "20 min"),)),
    Page("third_party", "Networks that nobody here trained", ()),
    Page("verdict_errors", "The verdict's own error rates", (_suite(
        "verdict_errors", "how often a verdict is wrong, next to what is often done, and how often it is reached",
        "nothing", "13 min of one core"),)),
    Page("red_team", "Attacks on safexplain itself", (_suite(
        "red_team", "what a security team's attacks on verdicts, noise and files gained in version 0.1, and what they"
        " gain now", "nothing", "20 min of one core"),)),
    Page("fuzzed_files", "A thousand disguises of a leak", (_suite(
        "fuzzed_files", "whether any variant of a leaking file of signals is certified, or a harmless one of a clean"
        " file is not", "nothing", "40 min of one core"),)),
    Page("dp_attacks", "Differential privacy against the attacks", (_suite(
        "dp_attacks", "does DP training stop the attacks: accuracy, faithfulness and leakage at epsilon .5 to 8 and"
        " without, under both adjacencies, beside what epsilon guarantees",
        "`cifar10.npz`, `gtsrb.npz`, `tinyimagenet32_100.npz`, `weights/`", "20 min of one core"),)),
    Page("dp_defaults", "The defaults of DPFineTuner", (_suite(
        "dp_defaults", "what a person gets who sets epsilon alone, beside the best of 20 configurations, on images,"
        " texts and a table", "`cifar10.npz`, `weights/`, `agnews_test.npz`, `dbpedia14k.npz`, `adult.npz`",
        "30 min of one core"),)),
    Page("bound_errors", "Lower bounds on epsilon", (_suite(
        "bound_errors", "how often lower bounds on epsilon are above the truth, and how tight they are", "nothing",
        "20 min of one core"), _suite(
        "bound_errors.power", "how often canary verdicts are wrong, whether what they say they would find is found",
        "nothing", "5 min of one core", "canary_power"))),
    Page("broken_trainers", "Broken trainers", (_suite(
        "broken_trainers", "which of 55 bugs of DP trainers, all real training loops, the white box and a thousand runs"
        " of canaries find; how often they refute a trainer that has none", "nothing", "50 min of one core"),)),
    Page("paper_c_canaries", '"Beyond Membership": canaries', (
        _suite("paper_c_canaries.figure3", "Figure 3: canaries in heads on features of CIFAR-10 images",
               "`cifar10.npz`, `weights/`", "25 min", "canary_figure3"),
        _suite("paper_c_canaries.scratch", "Figure 4: an MLP trained from scratch, on Location-30 for Purchase-100",
               "`location30.npz`", "45 min", "canary_scratch"),
    )),
    Page("paper_b_recourse", '"Accurate, Explainable, and Private Models": recourse', (
        _suite("paper_b_recourse.evidence", "Figures 1 to 3 and Tables 1 and 2, and the sound mechanisms",
               "`heloc.npz`, `adult.npz`, `mnist.npz`", "20 min", "recourse_evidence"),
        _suite("paper_b_recourse.networks", "the same attacks on recourse of networks, without privacy and private",
               "`heloc.npz`, `adult.npz`, `mnist.npz`", "40 min", "recourse_networks"),
    )),
    Page("paper_e_tmi", "Who was in the pre-training data?", (_suite(
        "paper_e_tmi", '"TMI! Finetuned Models Leak Private Information from their Pretraining Data" (Abascal et al.):'
        " its tables on images and text, as published and corrected; what explanations of a fine-tuned model tell of"
        " its pre-training data; its linear model as an exact check", "`tinyimagenet32_100.npz`, `cifar10.npz`,"
        " `gtsrb.npz`, `dbpedia14k.npz`, `agnews_test.npz`", "50 min (`--full`: a GPU)"),)),
    Page("benchmarks", "Benchmarks", (
        _benchmark("attack_power", "what share of what can be found at all the attacks find, on four simulated problems"
                   " of which the best possible test is known", "4 min"),
        _benchmark("reasons", "do released reasons speak for the decision: models of HELOC and Adult in every path",
                   "1 min", "`heloc.npz`, `adult.npz`; shap 0.50 or later"),
        _benchmark("hardening_speed", "maps of 3 x 32 x 32 and of 3 x 224 x 224 on one core, beside"
                   " ranks with noise as in 0.1; peak memory", "3 min"),
        _benchmark("explainer_overhead", "what `HardenedX` adds to the native explainer in time (`--all`: every method)"
                   " and memory (`--memory`)", "10 min"),
        _benchmark("protodash_speed", "`HardenedProtoDash` over 10,000 candidates, beside the native call", "15 min",
                   "the extra `aix360`"),
        _benchmark("batched_training", "reference MLPs as one batched computation against a loop", "1 min"),
        _benchmark("reference_training", "reference models one after the other: float32, bfloat16, channels last,"
                   " compiled, beside the loop of before", "7 min, and 12 on a GPU"),
        _benchmark("dp.epsilons", "epsilon under both adjacencies and calibration, beside dp-accounting's PLD"
                   " accountant", "1 min"),
        _benchmark("dp.finetuning", "a DP-SGD step of a whole vision transformer in each mode, beside Opacus; peak"
                   " memory", "3 min"),
        _benchmark("dp.head", "heads on fixed features in closed form, beside Opacus' PrivacyEngine", "6 min"),
        _benchmark("noise", "cryptographic noise, beside NumPy's and torch's generators and OpenDP's samplers; what it"
                   " adds to trainings and answers", "2 min"),
        _benchmark("canary_training", "all runs of an audit by canaries side by side, beside a loop of Opacus"
                   " trainings", "5 min"),
        _benchmark("ledger.speed", "charges by four processes at once, and a million recorded releases", "2 min",
                   "PostgreSQL for its half"),
        _benchmark("ledger.kills", "four processes that charge one ledger and are killed inside charges: what is lost,"
                   " doubled or overspent", "3 min", "`pgserver` and `psycopg`"),
        _benchmark("serving", "the service of hardened explanations beside the same service with plain Captum, for 1, 8"
                   " and 64 clients; remembered answers; HTTP and JSON alone", "10 min", "the extra `serve`"),
        _benchmark("audit_cost", "what a verdict costs on models of a person's own, through the command line, beside"
                   " its plan and version 0.2.0", "2 h", "`cifar10.npz`, `adult.npz`, `heloc.npz`, `weights/`"),
    ), "benchmarks"),
    Page("peers", "Against others", (Suite(
        "audit.benchmarks.peers", "attacks, DP steps, explanations and bounds, beside ML Privacy Meter, ART, SACRO-ML,"
        " PrivacyGuard, Opacus, Captum and accountants",
        "`cifar10.npz`, `heloc.npz`, `weights/`; installs the peers", "60 min", "frozen/peers", "e73fbe75"),),
        "benchmarks/peers"),
)  # fmt: skip

PAGES = (*_LISTED, *map(_page_with_head, pages_with_head()))
"""In the order of the index."""


def page(p: Page, results: Path = RESULTS) -> str:
    """The Markdown of a page.

    Raises:
        KeyError: its prose names a table that there is not.
    """
    parts = [
        f"<!-- Written by `python -m audit.pages` from {p.source.relative_to(ROOT).as_posix()}, the docstrings of the"
        " suites and audit/results: change those. -->",
        f"# {p.title}",
    ]
    if p.suites:
        commands = [(s.command, s.shows, s.needs, s.time) for s in p.suites]
        parts.append(markdown(("command", "what it shows", "needs", "time on 2 cores"), commands, left=4))
    parts.append(_filled(p.prose(), results).strip())
    if p.folder != "benchmarks" and not all(s.frozen for s in p.suites):
        parts.append("## How it is done")
        for s in p.suites:
            if len(p.suites) > 1:
                parts.append(f"### `{s.module}`")
            parts.append(f"```text\n{s.protocol()}\n```")
    if runs := [row for s in p.suites for row in _runs(s, results)]:
        parts += [
            "## Recorded runs",
            markdown(("result", "command", "date", "seconds", "revision", "processor"), runs, left=3),
            "`-dirty` after a revision: with changes that were not committed yet. Versions of all packages stand in the"
            " result. Suites were moved since; what the commands above run is what these commands ran.",
        ]
    return "\n\n".join(parts) + "\n"


def _filled(text: str, results: Path) -> str:
    """The prose with every table; where there is no result yet, its place says so."""

    def table(match: re.Match[str]) -> str:
        result, make = TABLES[match[1]]
        path = results / f"{result}.json"
        return make(json.loads(path.read_text())) if path.is_file() else "*There is no result yet.*"

    return re.sub(r"\{\{ ([^}]+) \}\}", table, text)


def _runs(s: Suite, results: Path) -> Iterator[tuple[str, ...]]:
    path = results / f"{s.result}.json"
    if not path.is_file():
        return
    together: dict[tuple[str, ...], float] = {}
    for run in _provenances(json.loads(path.read_text())):
        hardware = run["hardware"]
        processor = ", ".join([hardware["cpu"], f"{hardware['cores']} cores", *filter(None, [hardware.get("gpu")])])
        key = (path.name, f"`{run['command']}`", run["date"][:10], run["revision"] or "", processor)
        together[key] = together.get(key, 0.0) + run["seconds"]
    for (name, command, date, revision, processor), seconds in together.items():
        yield name, command, date, f"{seconds:,.0f}", revision, processor


def _provenances(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if {"command", "versions", "hardware"} <= value.keys():
            yield value
        for part in value.values():
            yield from _provenances(part)


def index(text: str) -> str:
    """The README with its two tables.

    Raises:
        ValueError: a place is missing, or is there twice.
    """
    rows: dict[str, list[tuple[str, ...]]] = {"suites": [], "benchmarks": []}
    for p in PAGES:
        for s in p.suites:
            kind, name = s.module.removeprefix("audit.").split(".", 1)
            time = f"frozen at `{s.frozen}`" if s.frozen else s.time
            about = (f"{s.shows} ([page](../docs/evidence/{p.name}.md))", s.needs) if kind == "suites" else (s.shows,)
            rows[kind].append((f"`{name}`", *about, time))
    made = {
        "suites": markdown(
            ("`python -m audit.suites.`...", "what it shows", "needs", "time on 2 cores"), rows["suites"], left=4
        ),
        "benchmarks": markdown(
            ("`python -m audit.benchmarks.`...", "what it measures", "time"), rows["benchmarks"], left=3
        ),
    }
    for name, table in made.items():
        text = _placed(text, name, table, README.name)
    return text


def _placed(text: str, name: str, table: str, file: str) -> str:
    pattern = re.compile(rf"(<!-- {name} -->\n\n)(?:(?!<!--).)*(<!-- end -->)", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"expected <!-- {name} --> ... <!-- end --> once in {file}")
    return pattern.sub(lambda m: f"{m[1]}{table}\n\n{m[2]}", text)


PLACES = {
    DOCS / "compare.md": {"question": "{{ peers: question }}"},
}
"""Other pages that hold tables -> name of the place in the page -> table."""


def written() -> dict[Path, str]:
    """Every file that is made from results, and what belongs into it."""
    made = {README: index(README.read_text())}
    for path, places in PLACES.items():
        made[path] = path.read_text()
        for name, table in places.items():
            made[path] = _placed(made[path], name, _filled(table, RESULTS), path.name)
    return made | {p.path: page(p) for p in PAGES}


def main() -> None:
    """Write all of them."""
    for path, text in written().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
