"""What the suites share: where data is found, what is recorded beside a result, tables, progress, resuming."""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import safexplain
from safexplain._digest import code_digest
from safexplain._files import atomic_file
from safexplain.errors import SafexplainError

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "audit" / "results"
PACKAGES = ("torch", "captum", "numpy", "scipy", "scikit-learn", "torchvision", "timm", "opacus", "dp-accounting")


class Unusable(Exception):
    """Something that the suite needs is missing; the message is one line that says what to do."""


class Run:
    """One run of a suite from the command line: its options, what earlier runs left, its clock and its JSON.

    Args:
        name: of the result.
        doc: of the suite, whose first line the help shows.
        argv: arguments; None: those of the process.
        flags: options of the suite's own, with a default or as `add_argument` takes them; `in_process` is --in-process.
    """

    def __init__(self, name: str, doc: str | None, argv: Sequence[str] | None, **flags: Any) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "safexplain" / "audit"
        data = Path(os.environ.get("SAFEXPLAIN_DATA") or ROOT.parent / "shared" / "data")
        p = argparse.ArgumentParser(prog=started_as(sys.argv[0]), description=(doc or "").partition("\n")[0])
        p.add_argument("--data", type=Path, default=data, help="folder of the .npz files (default: $SAFEXPLAIN_DATA)")
        p.add_argument("--out", type=Path, help=f"default: audit/results/{name}.json; if --quick, in the cache folder")
        p.add_argument("--cache", type=Path, default=cache, help="finished models and parts; a run resumes from them")
        p.add_argument("--quick", action="store_true", help="a small run that shows that all works; proves nothing")
        p.set_defaults(name=name)
        for flag, given in flags.items():
            if not isinstance(given, dict):
                given = {"type": type(given), "default": given}
            p.add_argument(f"--{flag.replace('_', '-')}", **given)
        self.options, self.began = p.parse_args(argv), time.perf_counter()
        self.quick: bool = self.options.quick

    @property
    def out(self) -> Path:
        """Where the JSON goes; a quick run only overwrites committed results if --out says so."""
        options = self.options
        quick = options.cache / f"{options.name}.quick.json"
        return Path(options.out or (quick if self.quick else RESULTS / f"{options.name}.json"))

    def parts(self, package: str | None, *modules: str) -> Parts:
        """Finished parts of earlier runs, kept as in `Parts`."""
        return Parts(self.options.cache / self.options.name, package or "", *modules)

    def earlier(self) -> dict[str, Any]:
        """Results of other tasks in the file that will be written."""
        return earlier(self.out, self.quick)

    def seconds(self) -> float:
        """Since the run began, or since this was last asked."""
        now = time.perf_counter()
        self.began, taken = now, now - self.began
        return taken

    def provenance(self, seconds: float | None = None) -> dict[str, Any]:
        """Of what has run since the last call, or of so many seconds."""
        return provenance(self.seconds() if seconds is None else seconds, getattr(self.options, "device", "cpu"))

    def write(self, **content: Any) -> None:
        """The result: what every suite records, and this."""
        write_json(self.out, rounded({"suite": self.options.name, "quick": self.quick, **content}))

    def end(self, missed: Sequence[str] = (), said: str = "") -> int:
        """Say which targets were missed and where the results are; the exit code. Quick runs miss none."""
        if not said:
            said = "quick run, targets not checked" if self.quick else "failed" if missed else "all targets met"
        return concluded([] if self.quick else missed, self.out, said)


def module_at(path: Path) -> ModuleType:
    """A Python file that is in no package, run and given as a module of its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(folder: Path, name: str, needs: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays of NAME.npz and what to record about the file; read by the folder's own load_data.py when there.

    Raises:
        Unusable: the file or one of the arrays is missing.
    """
    path = folder / f"{name}.npz"
    if not path.is_file():
        raise Unusable(f"{name}.npz is not in {folder}; give its folder with --data DIR or SAFEXPLAIN_DATA")
    reader = folder / "load_data.py"
    if reader.is_file():
        arrays = module_at(reader).load(name)
    else:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    if missing := sorted(set(needs) - set(arrays)):
        raise Unusable(f"{path} has no {', '.join(missing)}; compressed image files need the load_data.py beside them")
    return arrays, {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def public_networks(folder: Path, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Networks of the data folder that nobody here trained, by name and in eval mode, and the digests of their files.

    Raises:
        Unusable: a file is missing.
    """
    weights = folder / "weights"
    path = weights / "nets.py"
    if missing := [p.name for p in (path, *(weights / f"{n}.npz" for n in names)) if not p.is_file()]:
        raise Unusable(f"{', '.join(missing)} not found in {weights}; give the data folder with --data DIR")
    module = module_at(path)
    digests = {n: hashlib.sha256((weights / f"{n}.npz").read_bytes()).hexdigest() for n in names}
    return {n: module.load(n)[0].eval() for n in names}, digests


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def provenance(seconds: float, device: str = "cpu") -> dict[str, Any]:
    """Hardware, versions, command line, revision and date; no machine's paths."""
    script, *given = sys.argv
    given = [Path(a).name if a.startswith(("/", "~")) else a for a in given]
    return {
        "command": " ".join([started_as(script), *given]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "revision": revision(),
        "hardware": hardware(device),
        "versions": {"python": platform.python_version(), "safexplain": safexplain.__version__, **_versions()},
    }


def started_as(script: str) -> str:
    """The command that runs this file: a module here by its name."""
    path = Path(script).resolve()
    if not path.is_relative_to(ROOT) or path.suffix != ".py":
        return f"python {path.name}"
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    return f"python -m {module}"


def hardware(device: str = "cpu") -> dict[str, Any]:
    """Model and cores of the processor, threads used, and the GPU's name where one was used."""
    import torch

    found: dict[str, Any] = {"cpu": processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return found | ({"gpu": torch.cuda.get_device_name()} if device.startswith("cuda") else {})


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def revision() -> str | None:
    """What `git describe` says about the working tree, None where there is no git."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def peak_bytes(call: Callable[[], object]) -> int | None:
    """Highest resident size of this process during one call over that before it; Linux only, elsewhere None."""
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    gc.collect()
    reset.write_text("5")
    before = _resident("VmRSS")
    call()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """All or nothing, as a .npz file."""
    with atomic_file(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)


def write_json(path: Path, content: Any) -> None:
    """All or nothing, as `json_text`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as partial:
        partial.write_text(json_text(content))


def json_text(content: Any) -> str:
    """Plain JSON that is read and compared line by line: a cell of a table is a line.

    An element of a list of objects or lists is a line, and so is an object of plain values and lists of these; any
    other object has a line a key. The same content gives the same bytes.
    """
    return _lines(content, "") + "\n"


def _lines(value: Any, pad: str) -> str:
    deeper = pad + "  "
    if isinstance(value, dict) and value and (not pad or not all(map(_in_a_line, value.values()))):
        inside = [f"{json.dumps(key)}: {_lines(part, deeper)}" for key, part in value.items()]
        opened, closed = "{}"
    elif isinstance(value, list | tuple) and not _in_a_line(value):
        inside = [json.dumps(part) for part in value]
        opened, closed = "[]"
    else:
        return json.dumps(value)
    return f"{opened}\n{deeper}" + f",\n{deeper}".join(inside) + f"\n{pad}{closed}"


def _in_a_line(value: Any) -> bool:
    inside = value if isinstance(value, list | tuple) else [value]
    return not any(isinstance(part, dict | list | tuple) for part in inside)


def rounded(value: Any) -> Any:
    """Floats to 6 decimals, to keep the file readable."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list | tuple) else value


def earlier(out: Path, quick: bool) -> dict[str, Any]:
    """Results of other tasks in an earlier file; none where there is no such file."""
    try:
        found = json.loads(out.read_text())
    except (OSError, ValueError):
        return {}
    return dict(found["results"]) if found.get("quick") == quick else {}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table, its first `left` columns flush left."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    lines = [f"| {' | '.join(row)} |" for row in (header, *rows)]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as they need to be, the first one left-aligned."""
    cells = [list(header), *[[str(c) for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
             for row in cells]  # fmt: skip
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


class Progress:
    """One line on standard error that is rewritten; on a pipe, a line now and then. Fits `safexplain.audit`."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix, self.stage, self.done, self.started, self.shown = prefix, "", 0.0, 0.0, 0.0

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None:
        """`done` of `total` units of `stage` are finished; notes are not shown."""
        now, tty = time.monotonic(), sys.stderr.isatty()
        if stage != self.stage or done < self.done:
            self.stage, self.started, self.shown = stage, now, 0.0 if tty else now
        self.done, last = done, done >= total
        if now - self.shown < (0.2 if tty else 15.0) and not (last and tty):
            return
        self.shown = now
        left = (now - self.started) * (total - done) / max(done, 1e-9)
        text = f"{self.prefix}{stage} {done / total:4.0%}, {left:.0f} s left"
        print(f"\r{text:78}" if tty else text, end="\n" if last or not tty else "", file=sys.stderr, flush=True)


class Parts:
    """Finished parts of a long run as JSON files, named by what made them: parameters and code.

    Args:
        folder: of the files; made when needed.
        package, modules: whose code makes the parts, as in `code_of`.
    """

    def __init__(self, folder: Path, package: str, *modules: str) -> None:
        self.folder, self.code = folder, code_of(package, *modules)

    def get(self, parameters: Any, make: Callable[[], Any]) -> Any:
        """The stored part, or what `make()` returns, stored."""
        path = self._path(parameters)
        if path.is_file():
            return json.loads(path.read_text())
        made = make()
        write_json(path, made)
        return json.loads(path.read_text())

    def has(self, parameters: Any) -> bool:
        """Whether the part is stored."""
        return self._path(parameters).is_file()

    def _path(self, parameters: Any) -> Path:
        text = json.dumps([parameters, self.code], sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


@cache
def code_of(package: str, *modules: str, root: Path = ROOT) -> str:
    """SHA-256 of all files of a package in audit/, of all in audit/ that they import, and of the library behind them.

    Nobody lists files: what a suite stored is not used again when any of this code has changed.
    """
    waiting, met, library = sorted(root.joinpath(*package.split(".")).glob("*.py")), dict[Path, bytes](), set[str]()
    while waiting:
        path = waiting.pop()
        if path in met:
            continue
        met[path] = path.read_bytes()
        for name in _imported(path, met[path], root):
            if name.startswith("audit.") and (found := _source(name, root)):
                waiting.append(found)
            elif name.partition(".")[0] == "safexplain" and _source(name, root):
                library.add(name)
    h = hashlib.sha256(code_digest(*(modules or sorted(library)), package=root / "safexplain").encode())
    for path in sorted(met):
        h.update(f"{path.relative_to(root).as_posix()} {len(met[path])} ".encode() + met[path])
    return h.hexdigest()


def _source(name: str, root: Path) -> Path | None:
    path = root.joinpath(*name.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def _imported(path: Path, source: bytes, root: Path) -> Iterator[str]:
    """Every name in an import statement, in full: modules, and names that may be modules."""
    here = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) + 1 - node.level] if node.level else ()
            whole = ".".join((*above, *([node.module] if node.module else [])))
            yield whole
            yield from (f"{whole}.{alias.name}" for alias in node.names)


def concluded(missed: Sequence[str], out: Path, said: str = "") -> int:
    """Say which targets were missed and where the results are; the exit code."""
    for line in missed:
        print(f"MISSED: {line}", file=sys.stderr)
    print(f"{said}; written to {out}" if said else f"written to {out}")
    return 1 if missed else 0


def finish(main: Callable[[list[str] | None], int]) -> None:
    """Run a suite from the command line: one line and exit code 2 for what the user can mend, 130 for Ctrl-C."""
    try:
        code = main(None)
    except (Unusable, SafexplainError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("\ninterrupted; finished parts are kept, the same command resumes", file=sys.stderr)
        code = 130
    sys.exit(code)
