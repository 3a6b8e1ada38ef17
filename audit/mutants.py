"""Mutation testing: small random changes of the package's code, each of which the tests have to notice.

    python audit/mutants.py run --out mutants.json    # 600 mutants of what may not be wrong, against `make test`
    python audit/mutants.py run --paths safexplain/ledger --tests tests/ledger --count 40 --seed 3 --out ledger.json
    python audit/mutants.py show mutants.json         # a table by folder, and the survivors

A mutant changes one thing: an arithmetic operator, a comparison, a number, a truth value or a returned value (to None).
It is killed if a test fails or takes much longer than before. Each runs against the tests that execute its line (found
by one run under `coverage`), the quickest first. What survives these runs against the folder of tests that mirrors its
own. Mutants are ranked by a hash of their seed, function and text, so that edits elsewhere do not change which are
drawn. A survivor of which `--out` says "why" is equivalent: no input can tell; "since" says what became of any other.
`mutants.json` beside this file is what `run --jobs 2 --limit 30` found last. Needs pytest-cov.
"""

import argparse
import ast
import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PATHS = tuple(
    f"safexplain/{folder}"
    for folder in (
        "hardening", "explain", "verdict", "audit/attacks", "audit/controls",
        "_privacy_loss", "recourse", "ledger", "serve",
    )
)  # fmt: skip
PRELOADED = (
    "captum.attr", "opacus", "dp_accounting", "sklearn.ensemble", "scipy.stats", "pandas", "matplotlib.pyplot",
    "transformers", "torchvision", "timm", "pydantic", "typer.testing", "shap", "alibi",
    "cvxpy", "optuna",
)  # fmt: skip
ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.Pow: ("**", "*"),
}  # fmt: skip
COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: bytes `start` to `end` of the file at `path` become `after`."""

    path: str
    function: str
    line: int
    last_line: int
    text: str
    kind: str
    before: str
    after: str
    start: int
    end: int
    occurrence: int

    def rank(self, seed: int) -> str:
        """A number that only this mutant and the seed decide."""
        parts = (seed, self.path, self.function, self.text, self.kind, self.before, self.after, self.occurrence)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def find_mutants(root: Path, path: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its text."""
    source = (root / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[tuple[int, int, str, str, str, int, int, str]] = []

    def position(line: int, column: int) -> int:
        return starts[line - 1] + column

    def change_between(inside: str, left: ast.AST, right: ast.AST, kind: str, before: str, after: str) -> None:
        begin = position(left.end_lineno, left.end_col_offset)  # type: ignore[attr-defined]
        gap = source[begin : position(right.lineno, right.col_offset)]  # type: ignore[attr-defined]
        if b"#" not in gap and (at := gap.find(before.encode())) >= 0:
            add(inside, left, kind, before, after, begin + at, begin + at + len(before))

    def add(inside: str, node: ast.AST, kind: str, before: str, after: str, start: int, end: int) -> None:
        found.append((start, end, kind, before, after, node.lineno, node.end_lineno, inside))  # type: ignore[attr-defined]

    def visit(node: ast.AST, inside: str = "") -> None:
        match node:
            case ast.AnnAssign():
                if node.value is not None:
                    visit(node.value, inside)
                return
            case ast.arg():
                return
            case ast.BinOp() if type(node.op) in ARITHMETIC:
                change_between(inside, node.left, node.right, "arithmetic", *ARITHMETIC[type(node.op)])
            case ast.AugAssign() if type(node.op) in ARITHMETIC:
                before, after = ARITHMETIC[type(node.op)]
                change_between(inside, node.target, node.value, "arithmetic", f"{before}=", f"{after}=")
            case ast.Compare():
                for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                    change_between(inside, left, right, "comparison", *COMPARISONS[type(op)])
            case ast.Constant() if isinstance(node.value, bool | int | float):
                value = not node.value if isinstance(node.value, bool) else node.value + 1
                begin, end = position(node.lineno, node.col_offset), position(node.end_lineno, node.end_col_offset)
                before = source[begin:end].decode()
                if before == repr(node.value) or before[:1].isdigit() or before[:1] == ".":
                    add(inside, node, "constant", before, repr(value), begin, end)
            case ast.Return() if node.value is not None and not (
                isinstance(node.value, ast.Constant) and node.value.value is None
            ):
                begin = position(node.value.lineno, node.value.col_offset)
                end = position(node.value.end_lineno, node.value.end_col_offset)
                begin, end = widen(source, begin, end, position(node.lineno, node.col_offset) + len("return"))
                add(inside, node, "return", source[begin:end].decode(), "None", begin, end)
            case ast.JoinedStr():
                return  # positions inside f-strings are wrong before Python 3.12
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for child in node.decorator_list:
                    visit(child, inside)
                inside = f"{inside}.{node.name}".lstrip(".")
                outer = [*node.bases, *node.keywords] if isinstance(node, ast.ClassDef) else node.args.defaults
                also = [] if isinstance(node, ast.ClassDef) else [*filter(None, node.args.kw_defaults)]
                for child in [*outer, *also, *node.body]:
                    visit(child, inside)
                return
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(source))
    lines = source.decode().splitlines()
    seen: Counter[tuple[str, ...]] = Counter()
    mutants = []
    for start, end, kind, before, after, line, last, function in sorted(found):
        key = (function, lines[line - 1].strip(), kind, before, after)
        mutants.append(Mutant(path, function, line, last, key[1], kind, before, after, start, end, seen[key]))
        seen[key] += 1
    return mutants


def widen(source: bytes, begin: int, end: int, first: int) -> tuple[int, int]:
    """The value of a `return` with the parentheses around it, which its syntax tree leaves out."""
    while source[first:begin].strip().endswith(b"("):
        begin = source.rindex(b"(", first, begin)
        end = source.index(b")", end) + 1
    return begin, end


def draw_mutants(root: Path, paths: tuple[str, ...], count: int, seed: int) -> list[Mutant]:
    """`count` mutants of all in these files and folders, each as likely as any other."""
    files = [
        f for path in paths for f in ([root / path] if path.endswith(".py") else sorted((root / path).rglob("*.py")))
    ]
    mutants = [mutant for file in files for mutant in find_mutants(root, str(file.relative_to(root)))]
    return sorted(mutants, key=lambda mutant: mutant.rank(seed))[:count]


@dataclass
class Coverage:
    """Which tests execute which line, and the seconds that each takes."""

    tests: dict[str, dict[int, set[str]]]
    seconds: dict[str, float]

    @classmethod
    def measured(cls, root: Path, tests: list[str], data: Path, report: Path) -> "Coverage":
        """Read from a coverage file with contexts and a JUnit report, made here by one run if they are not there."""
        if not data.exists() or not report.exists():
            settings = data.with_suffix(".rc")
            settings.write_text(f"[run]\nsource = safexplain\ndata_file = {data}\n")
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--cov=safexplain"]
            command += [
                "--cov-report=",
                f"--cov-config={settings}",
                "--cov-context=test",
                f"--junitxml={report}",
                *tests,
            ]
            subprocess.run(command, cwd=root, env=environment(root), stdout=subprocess.DEVNULL, check=False)
        import coverage

        seconds = {}
        for case in ElementTree.parse(report).iter("testcase"):
            if not {child.tag for child in case} & {"failure", "error", "skipped"}:
                parts = case.get("classname", "").split(".")
                files = (k for k in range(len(parts), 0, -1) if (root / f"{'/'.join(parts[:k])}.py").is_file())
                stem = next(files, 0)
                name = "::".join(["/".join(parts[:stem]) + ".py", *parts[stem:], case.get("name", "")])
                seconds[name] = float(case.get("time", 0))
        by_file: dict[str, set[str]] = defaultdict(set)
        for name in seconds:
            by_file[name.partition("::")[0]].add(name)
        measured = coverage.CoverageData(str(data))
        measured.read()
        found: dict[str, dict[int, set[str]]] = {}
        for file in measured.measured_files():
            inner = file[file.index("safexplain/") if not file.startswith(str(root)) else len(str(root)) + 1 :]
            lines = found.setdefault(inner, {})
            for line, contexts in measured.contexts_by_lineno(file).items():
                for context in contexts:
                    name, _, phase = context.rpartition("|")
                    # A fixture of a module or a session runs for the first test that asks; the others look at it too.
                    names = by_file[name.partition("::")[0]] if phase == "setup" else {name} & seconds.keys()
                    lines.setdefault(line, set()).update(names)
        return cls(found, seconds)

    def executing(self, mutant: Mutant) -> list[str]:
        """The tests of a mutant's lines, one of each function first, the quickest first."""
        lines = self.tests.get(mutant.path, {})
        names = set().union(*(lines.get(line, set()) for line in range(mutant.line, mutant.last_line + 1)))
        if not names:  # executed at import
            names = set().union(*lines.values())
        own = mirror(mutant.path)
        seen: Counter[str] = Counter()
        ranked = []
        for name in sorted(names, key=lambda name: (self.seconds[name], name)):
            function = name.partition("[")[0]
            ranked.append((seen[function] > 0, not name.startswith(own), self.seconds[name], name))
            seen[function] += 1
        return [name for *_, name in sorted(ranked)]


def mirror(path: str) -> str:
    """The folder of tests for a file of the package."""
    parts = Path(path).parts[1:]
    if parts[0] == "_privacy_loss":
        return "tests/dp"
    return f"tests/{parts[0]}"


def environment(root: Path) -> dict[str, str]:
    """Variables for tests of the tree at `root`."""
    return {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def copy_tree(root: Path, to: Path) -> None:
    """The files of a checkout that git knows, and the stubs."""
    listing = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(listing, cwd=root, capture_output=True, check=True).stdout.decode().split("\0")
    for name in [*names, *(str(p.relative_to(root)) for p in (root / "safexplain").glob("*.pyi"))]:
        if name and (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    subprocess.run(["git", "init", "-q"], cwd=to, check=False)


def run_tests(root: Path, names: list[str], limit: float, log: Path, *options: str) -> tuple[str, str]:
    """Run tests in a fork of this process. -> ("passed", "failed" or "timeout"), the first that failed."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (10 << 30, 10 << 30))
        os.environ.update(environment(root))
        os.chdir(root)
        sys.path.insert(0, str(root))
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = 1
        try:
            import pytest

            without = [word for plugin in ("cacheprovider", "xdist", "cov") for word in ("-p", f"no:{plugin}")]
            code = int(pytest.main(["-x", "-q", *without, "--tb=line", *options, *names]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    until = time.monotonic() + limit
    outcome = "timeout"
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            outcome = "passed" if os.waitstatus_to_exitcode(status) in (0, 5) else "failed"
            break
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if outcome == "timeout":
        os.waitpid(child, 0)
    text = log.read_text(errors="replace") if log.exists() else ""
    failed = next((line.split(" ")[1] for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))), "")
    return outcome, failed


def take_most(names: list[str], seconds: dict[str, float], limit: float, most: int) -> list[str]:
    """The first names that together take `limit` seconds, at most `most`, at least one."""
    taken, total = [], 0.0
    for name in names:
        total += seconds[name]
        if taken and (total > limit or len(taken) >= most):
            break
        taken.append(name)
    return taken


def judge(root: Path, mutant: Mutant, coverage: Coverage, log: Path, limit: float) -> dict[str, object]:
    """Change the file, run its tests in stages, and put the file back."""
    file = root / mutant.path
    original = file.read_bytes()
    stat = file.stat()
    began = time.monotonic()
    file.write_bytes(original[: mutant.start] + mutant.after.encode() + original[mutant.end :])
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 3_000_000_000))
    try:
        executing = coverage.executing(mutant)
        first = take_most(executing, coverage.seconds, 15, 40)
        second = take_most(executing[len(first) :], coverage.seconds, limit, 1000)
        tried = {*first, *second}
        folder = [name for name in coverage.seconds if name.startswith(mirror(mutant.path) + "/") and name not in tried]
        folder.sort(key=lambda name: (coverage.seconds[name], name))
        third = take_most(folder, coverage.seconds, limit, 1000)
        for names in filter(None, (first, second, third)):
            expected = sum(coverage.seconds[name] for name in names)
            outcome, failed = run_tests(root, names, 5 * expected + 120, log)
            if outcome != "passed":
                break
        else:
            outcome, failed = "passed", ""
    finally:
        file.write_bytes(original)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    status = "survived" if outcome == "passed" else "killed"
    seconds = round(time.monotonic() - began, 1)
    return {**asdict(mutant), "status": status, "by": failed or outcome, "tests": len(tried), "seconds": seconds}


def work(root: Path, coverage: Coverage, tasks: Any, results: Any, limit: float) -> None:
    """A process that takes mutants until none is left."""
    os.environ.update(environment(root))
    for name in PRELOADED:  # in this process, of which every run is a fork
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    log = root / "mutant.log"
    # Write the bytecode of the package and of the tests, which runs with a mutant only read.
    run_tests(root, sorted({name.partition("::")[0] for name in coverage.seconds}), 900, log, "--collect-only")
    sys.dont_write_bytecode = True
    quickest = sorted(coverage.seconds, key=lambda name: coverage.seconds[name])[:20]
    if run_tests(root, quickest, 300, log)[0] != "passed":
        results.put(RuntimeError(f"tests fail without a mutant: {log.read_text()[-2000:]}"))
        return
    while True:
        try:
            mutant = tasks.get_nowait()
        except queue.Empty:
            return
        results.put(judge(root, mutant, coverage, log, limit))


def run(arguments: argparse.Namespace) -> None:
    """Draw, run and record; what `--out` holds already is not run again."""
    root = arguments.root.resolve()
    out = arguments.out
    mutants = draw_mutants(root, tuple(arguments.paths), arguments.count, arguments.seed)
    done = json.loads(out.read_text())["mutants"] if out.exists() else []
    known = {Mutant(**{f: m[f] for f in Mutant.__dataclass_fields__}).rank(arguments.seed): m for m in done}
    left = [m for m in mutants if m.rank(arguments.seed) not in known]
    records = [known[m.rank(arguments.seed)] for m in mutants if m.rank(arguments.seed) in known]
    print(f"{len(mutants)} mutants, {len(left)} to run", flush=True)
    data = arguments.coverage or out.with_suffix(".coverage")
    coverage = Coverage.measured(root, arguments.tests, data, data.with_suffix(".xml"))
    if not coverage.seconds:
        sys.exit(f"no test passed: {arguments.tests}; see `pytest {' '.join(arguments.tests)}`")
    print(f"{len(coverage.seconds)} tests that pass, {sum(coverage.seconds.values()):.0f} s", flush=True)
    tasks: multiprocessing.Queue[Mutant] = multiprocessing.Queue()
    results: multiprocessing.Queue[dict[str, object]] = multiprocessing.Queue()
    for mutant in left:
        tasks.put(mutant)
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        workers = []
        for k in range(arguments.jobs):
            tree = Path(temporary) / f"{k}" / "tree"
            tree.mkdir(parents=True)
            copy_tree(root, tree)
            shared = root.parent / "shared"
            if shared.exists():
                (tree.parent / "shared").symlink_to(shared)
            workers.append(multiprocessing.Process(target=work, args=(tree, coverage, tasks, results, arguments.limit)))
            workers[-1].start()
        for k in range(len(left)):
            record = results.get()
            if isinstance(record, Exception):
                raise record
            records.append(record)
            save(out, arguments, records)
            if record["status"] == "survived" or k % 20 == 0:
                print(f"{k + 1}/{len(left)} {describe(record)}", flush=True)
        for worker in workers:
            worker.join()
    save(out, arguments, records)
    show(out)


def save(out: Path, arguments: argparse.Namespace, records: list[dict[str, object]]) -> None:
    """Write what is known, all or nothing."""
    about = {"seed": arguments.seed, "paths": list(arguments.paths), "tests": arguments.tests}
    text = json.dumps(about | {"mutants": records}, indent=1)
    partial = out.with_suffix(".partial")
    partial.write_text(text + "\n")
    partial.replace(out)


def describe(m: dict[str, object]) -> str:
    """One line about a mutant."""
    where = f"{m['status']} {m['path']}:{m['line']} {m['function']}"
    change = f"{m['before']!s:.60} -> {m['after']} | {m['text']!s:.110}"
    return f"{where}: {change} | {m['by']} ({m['tests']} tests, {m['seconds']} s)"


def show(out: Path, record: Path | None = None) -> None:
    """Print the survivors, and a table by folder; write both to `record`."""
    content = json.loads(out.read_text())
    survivors = sorted(
        (m for m in content["mutants"] if m["status"] == "survived"), key=lambda m: (m["path"], m["function"])
    )
    for m in survivors:
        print(describe(m), *filter(None, [m.get("why")]), sep="\n    ")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for m in content["mutants"]:
        folder = next((p for p in PATHS if f"{m['path']}/".startswith(f"{p}/")), str(Path(m["path"]).parent))
        for name in (folder, "all"):
            counts[name]["equivalent" if "why" in m else m["status"]] += 1
    for folder, count in counts.items():
        total = count["killed"] + count["survived"]
        share = f"{count['killed'] / total:.1%}" if total else ""
        print(f"{folder:28} {count['killed']:4} of {total:4} killed  {share:>6}  ({count['equivalent']} equivalent)")
    if record:
        kept = ("path", "function", "text", "before", "after", "why", "since")
        rows = [{name: m[name] for name in kept if name in m} for m in survivors]
        about = {name: value for name, value in content.items() if name != "mutants"}
        record.write_text(json.dumps(about | {"counts": counts, "survivors": rows}, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--root", type=Path, default=Path(), help="the checkout")
    running.add_argument("--paths", nargs="+", default=list(PATHS), help="files or folders to change")
    running.add_argument("--tests", nargs="+", default=["tests", "safexplain"], help="what must notice")
    running.add_argument("--count", type=int, default=600)
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--jobs", type=int, default=1)
    running.add_argument("--limit", type=float, default=120, help="seconds of tests for a mutant in each later stage")
    running.add_argument("--coverage", type=Path, help="coverage data with contexts, and an .xml report, of one run")
    running.add_argument("--out", type=Path, required=True)
    showing = commands.add_parser("show")
    showing.add_argument("out", type=Path)
    showing.add_argument("--record", type=Path, help="a file for the counts and the survivors")
    arguments = parser.parse_args()
    run(arguments) if arguments.command == "run" else show(arguments.out, arguments.record)


if __name__ == "__main__":
    main()
