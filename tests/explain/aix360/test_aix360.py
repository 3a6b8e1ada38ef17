"""AIX360: imported only when used, without xport; what is not hardened is refused with the reason."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from safexplain import Hardening
from safexplain.errors import ConfigurationTypeError, MissingExtraError, RefusedError
from safexplain.explain import libraries
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


def named(module, name, *bases):
    """An instance of a class that says that it comes from a module."""
    return type(name, bases or (object,), {"__module__": module})()


def test_using_it_without_the_extra_says_what_to_install():
    code = """
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
        """
    done = subprocess.run([sys.executable, "-c", BLOCK + textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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


def test_a_stand_in_is_gone_after_the_import(monkeypatch):
    importing = ModuleType("aix360.importing")
    monkeypatch.setitem(sys.modules, "aix360.importing", importing)
    with libraries._stand_in_for("a_module_of_nobody", "aix360"):
        importing.a_module_of_nobody = importlib.import_module("a_module_of_nobody")
    assert not hasattr(importing, "a_module_of_nobody")
    assert "a_module_of_nobody" not in sys.modules


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
