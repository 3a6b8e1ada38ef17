"""The modules named after libraries: what is hardened, what is not, and no library before it is used."""

import importlib
import subprocess
import sys
import textwrap

import pytest

from safexplain import Hardening
from safexplain.errors import ConfigurationTypeError, NotHardenedError, RefusedError
from safexplain.explain import harden
from safexplain.explain.alibi import REFUSED

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries


def test_alibis_explanations_of_a_whole_data_set_say_why_they_are_not_hardened():
    for name in REFUSED:
        with pytest.raises(NotHardenedError, match="it describes the model over a data set, not one decision"):
            exec(f"from safexplain.alibi import {name}")


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("captum", "NoiseTunnel"),
        ("alibi", "CEM"),
        ("aix360", "CEMExplainer"),
        ("lime", "RecurrentTabularExplainer"),
        ("shap", "PermutationExplainer"),
    ],
)
def test_what_is_not_hardened_says_so_and_names_what_is(library, name):
    module = importlib.import_module(f"safexplain.{library}")
    known = next(n for n in module.__all__ if n[0].isupper())
    with pytest.raises(AttributeError, match=rf"safexplain\.{library}\.{name} is not hardened.*{known}"):
        getattr(module, name)
    with pytest.raises(NotHardenedError, match=rf"safexplain\.{library}\.{name} is not hardened.*{known}"):
        exec(f"from safexplain.{library} import {name}")
    assert not hasattr(module, name)


@pytest.mark.parametrize("library", ["captum", "alibi", "aix360", "lime", "shap"])
def test_all_that_is_listed_is_there_and_takes_a_hardening(library):
    pytest.importorskip(library)
    module = importlib.import_module(f"safexplain.{library}")
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        found = getattr(module, name)
        if isinstance(found, type) and found.__module__.startswith("safexplain"):
            assert found.__doc__, name


def test_the_modules_import_no_library_before_it_is_used():
    code = (
        "import sys, safexplain.alibi, safexplain.aix360, safexplain.lime, safexplain.shap\n"
        "from safexplain.explain import harden\n"
        "from safexplain.explain.aix360 import HardenedProtoDash\n"
        "native = type('ProtodashExplainer', (), {'__module__': 'aix360.algorithms.protodash.PDASH'})\n"
        "harden(native(), public=[[1.0, 2.0]] * 3)\n"
        "HardenedProtoDash([[1.0, 2.0]] * 3)\n"
        "found = {'alibi', 'aix360', 'lime', 'shap', 'cvxpy', 'osqp', 'spacy'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
