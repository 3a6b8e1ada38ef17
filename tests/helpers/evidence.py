"""What tests of the suites under audit/ share: data that may be missing, and a run from the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("SAFEXPLAIN_DATA") or ROOT.parent / "shared" / "data")


def needs(*files):
    """Mark of a test that is skipped, with a word about it, where files of data are missing."""
    missing = [name for name in files if not (DATA / name).is_file()]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not there (SAFEXPLAIN_DATA)")


def run(module, *arguments, out, timeout=500):
    """Exit code, standard error and results of `python -m MODULE ... --out OUT` from anywhere."""
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "SAFEXPLAIN_DATA": str(DATA)}
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments), "--out", str(out)],
        env=environment, cwd=out.parent, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done, json.loads(out.read_text()) if out.exists() else None


def twice(module, folder, *arguments):
    """Results of two quick runs with one cache folder; the second one finds everything there and makes nothing."""
    cache, results = folder / "cache", []
    for _ in range(2):
        before = stored(cache)
        done, found = run(module, "--quick", "--cache", cache, *arguments, out=folder / "out.json")
        assert done.returncode == 0, done.stderr
        results.append(found)
    assert before, "nothing was kept"
    assert stored(cache) == before, "something was made again"
    return results


def stored(cache):
    """Every file of a folder, and when it was written."""
    return {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
