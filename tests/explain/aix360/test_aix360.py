"""AIX360: imported only when used, without xport; what is not hardened is refused with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from safexplain import Hardening
from safexplain.errors import ConfigurationTypeError, MissingExtraError, RefusedError
from safexplain.explain.aix360 import HardenedLimeText
from safexplain.explain.libraries import load
from safexplain.explain.wrap import harden

pytest.importorskip("aix360", reason='AIX360 is not installed: pip install "safexplain[aix360]"')

RAW = Hardening.none()

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name.partition('.')[0]!r}", name=name.partition(".")[0])

BLOCKED = {"aix360", "lime", "cvxpy", "osqp"}
sys.meta_path.insert(0, Block())
"""

NO_TRACE = """
import gc, sys, types
from importlib.util import find_spec

def is_xport(value):
    return isinstance(value, types.ModuleType) and value.__name__ == "xport"

def no_trace():
    kept = [value for value in gc.get_objects() if is_xport(value)]
    holders = [n for n, m in list(sys.modules.items()) if any(map(is_xport, getattr(m, "__dict__", {}).values()))]
    try:
        import xport
    except ModuleNotFoundError as error:
        assert error.name == "xport"
    else:
        raise AssertionError("xport can be imported")
    assert "xport" not in sys.modules and not holders and not kept, (holders, kept)
"""


def run(*code, path=None):
    """Run Python code in a process of its own; its standard output."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")])
    script = "\n".join(textwrap.dedent(part) for part in code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def named(module, name, *bases):
    """An instance of a class that says that it comes from a module."""
    return type(name, bases or (object,), {"__module__": module})()


def test_using_it_without_the_extra_says_what_to_install():
    run(
        BLOCK,
        """
        from safexplain.errors import MissingExtraError
        from safexplain.explain.aix360 import HardenedLimeText, HardenedProtoDash
        dash = HardenedProtoDash([[1.0, 2.0], [2.0, 1.0], [0.0, 1.0]])
        for name, use in (("lime", HardenedLimeText), ("aix360", lambda: dash.explain([[1.0, 0.0]], m=1))):
            try:
                use()
            except MissingExtraError as error:
                assert 'pip install "safexplain[aix360]"' in str(error) and error.name == name, error
            else:
                raise AssertionError("no error")
        assert "xport" not in sys.modules
        """,
    )


def test_what_lime_needs_and_is_not_installed_is_named(tmp_path: Path, monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "lime"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "lime").mkdir()
    (tmp_path / "lime" / "__init__.py").write_text("import a_module_of_nobody")
    monkeypatch.syspath_prepend(tmp_path)
    load.cache_clear()
    with pytest.raises(MissingExtraError, match="a_module_of_nobody is not installed"):
        HardenedLimeText()
    load.cache_clear()


def without_xport():
    pytest.importorskip("aix360")
    pytest.importorskip("cvxpy")
    try:
        import xport  # noqa: F401
    except ImportError:
        return
    pytest.skip("xport is installed here")


@pytest.mark.slow
def test_neither_a_failed_import_of_protodash_nor_eight_at_once_leave_a_stand_in():
    without_xport()
    run(
        NO_TRACE,
        """
        from concurrent.futures import ThreadPoolExecutor
        from safexplain.errors import MissingExtraError
        from safexplain.explain.libraries import load
        sys.modules["osqp"] = None
        try:
            load("aix360.algorithms.protodash")
        except MissingExtraError as error:
            assert error.name == "osqp"
        else:
            raise AssertionError("no error")
        no_trace()
        del sys.modules["osqp"]
        with ThreadPoolExecutor(8) as pool:
            modules = list(pool.map(lambda _: load("aix360.algorithms.protodash"), range(16)))
        assert len({id(m) for m in modules}) == 1
        assert modules[0].ProtodashExplainer.__module__ == "aix360.algorithms.protodash.PDASH"
        no_trace()
        """,
    )


def test_what_is_not_hardened_is_refused():
    native = named("aix360.algorithms.rbm.some_module", "SomeExplainer")
    with pytest.raises(RefusedError, match="got SomeExplainer, which cannot be hardened"):
        harden(native, RAW)
    own = named("my_code", "Mine", type(named("lime.lime_text", "LimeTextExplainer")))
    with pytest.raises(RefusedError, match="Mine, which cannot be hardened"):
        harden(own, RAW)
    for other in (named("limelight.x", "Y"), None):
        with pytest.raises(ConfigurationTypeError, match="expected an explainer of Captum, Alibi"):
            harden(other, RAW)
