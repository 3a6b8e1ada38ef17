"""Writes the stubs of `safexplain` and of its modules named after libraries: what type checkers and editors see.

    make stubs

A hardened class takes its signatures from the native one, which only exist once a program runs; a type checker runs
nothing. The stubs are not in git: every build of a wheel or of the site writes them first. All optional libraries must
be installed.
"""

from __future__ import annotations

import collections.abc
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
import types
import typing
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safexplain
from safexplain.explain.aix360 import AIX360, LIME
from safexplain.explain.alibi import ALIBI
from safexplain.explain.catalog import CATALOG
from safexplain.explain.hardened import HARDENED
from safexplain.explain.libraries import load
from safexplain.explain.shap import SHAP

PACKAGE = Path(safexplain.__file__).parent

EMPTY = inspect.Parameter.empty
HARDENING = ["hardening: Hardening | None = None", "model_digest: bytes | None = None"]

ONE_OR_MANY = "TensorOrTuple"
MAPS = "Tensor | tuple[Tensor, ...]"

WRITTEN = {
    "Inputs": ONE_OR_MANY,
    "Direction": 'Literal["up", "down"]',
    "TensorOrTupleOfTensorsGeneric": ONE_OR_MANY,
    "ModuleOrModuleList": "nn.Module | list[nn.Module]",
}
"""Names of types and type variables that go by another name here."""

CLASSES = {
    "Tensor": "Tensor",
    "Module": "nn.Module",
    "Callable": "Callable[..., Any]",
    "ndarray": "NDArray[Any]",
    "Attribution": "captum.attr.Attribution",
    "Hardening": "Hardening",
}
"""Classes that have a name in the stubs; all others are Any there."""

NAMED = {
    "training_data": "NDArray[Any]",
    "training_labels": "Sequence[Any] | NDArray[Any] | None",
    "feature_names": "Sequence[str] | None",
    "categorical_features": "Sequence[int] | None",
    "categorical_names": "Mapping[int, Sequence[str]] | None",
    "class_names": "Sequence[str] | None",
    "kernel_width": "float | None",
    "kernel": "Callable[..., Any] | None",
    "feature_selection": 'Literal["forward_selection", "lasso_path", "none", "auto", "highest_weights"]',
    "discretizer": "Any",
    "random_state": "int | np.random.RandomState | None",
    "training_data_stats": "Mapping[str, Any] | None",
    "data_row": "Any",
    "image": "NDArray[Any]",
    "text_instance": "str",
    "predict_fn": "Callable[[Any], Any]",
    "classifier_fn": "Callable[[Any], Any]",
    "labels": "Sequence[int] | None",
    "top_labels": "int | None",
    "hide_color": "float | None",
    "mask_string": "str | None",
    "segmentation_fn": "Callable[[Any], Any] | None",
    "random_seed": "int | None",
    "model_regressor": "Any",
    "split_expression": "str | Callable[[str], list[str]]",
}
"""Parameters of lime, which has no annotations."""


def spelled(kind: Any) -> str:
    """A type as it is written in a stub."""
    if kind is EMPTY:
        return "Any"
    if kind in (None, type(None)):
        return "None"
    if isinstance(kind, str):
        return " | ".join(_spelled_text(part) for part in kind.split(" | "))
    if isinstance(kind, typing.TypeVar):
        return WRITTEN.get(kind.__name__, "Any")
    if isinstance(kind, typing.ForwardRef):
        return "Any"
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        parts = list(dict.fromkeys(spelled(a) for a in arguments))
        return " | ".join([p for p in parts if p != "None"] + (["None"] if "None" in parts else []))
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is collections.abc.Callable:
        if not arguments:
            return "Callable[..., Any]"
        taken = "..." if arguments[0] is Ellipsis else f"[{', '.join(map(spelled, arguments[0]))}]"
        return f"Callable[{taken}, {spelled(arguments[-1])}]"
    if kind in (list, typing.List, tuple, dict, typing.Dict):  # noqa: UP006 - as Captum and Alibi write them
        inner = {"list": "Any", "tuple": "Any, ...", "dict": "Any, Any"}
        name = (origin or kind).__name__
        return f"{name}[{inner[name]}]"
    if origin is not None:
        if origin.__module__ not in ("builtins", "collections.abc"):
            return "Any"
        return f"{origin.__name__}[{', '.join('...' if a is Ellipsis else spelled(a) for a in arguments)}]"
    if getattr(kind, "__module__", "") == "builtins":
        return str(kind.__name__)
    return CLASSES.get(getattr(kind, "__name__", ""), "Any")


def _spelled_text(text: str) -> str:
    plain = re.match(r"(Any|None|str|int|bool|float|bytes|nn\.Module|Tensor|(list|Mapping|Callable)\[.*\])$", text)
    return WRITTEN.get(text, text if plain else "Any")


def parameter(one: inspect.Parameter, kind: str | None = None) -> str:
    """A parameter as it is written in a stub."""
    star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    written = kind or spelled(one.annotation)
    if one.annotation is EMPTY and not star:
        written = kind or NAMED.get(one.name) or _of_default(one.default)
    elif one.default is None and "None" not in written.split(" | ") and written not in ("Any", "object"):
        written += " | None"
    default = "" if one.default is EMPTY or star else f" = {_default(one.default)}"
    return f"{star}{one.name}: {written}{default}"


def _of_default(default: Any) -> str:
    return type(default).__name__ if isinstance(default, bool | int | float | str) else "Any"


def _default(value: Any) -> str:
    plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if plain or (isinstance(value, tuple) and len(value) < 4) else "..."


def method(name: str, parameters: list[str], result: str, doc: str = "") -> str:
    """A method of a class, indented."""
    body = f'\n        """{doc}"""\n' if doc else " ..."
    return f"    def {name}({', '.join(['self', *parameters])}) -> {result}:{body}"


def with_hardening(parameters: list[str], extra: list[str]) -> list[str]:
    """Parameters of a constructor with keywords of our own, before its **kwargs."""
    at = next((i for i, p in enumerate(parameters) if p.startswith("**")), len(parameters))
    star = [] if any(p.startswith("*") and not p.startswith("**") for p in parameters) else ["*"]
    return [*parameters[:at], *star, *extra, *parameters[at:]]


def given(signature: inspect.Signature) -> list[inspect.Parameter]:
    """All but self."""
    return [p for p in signature.parameters.values() if p.name != "self"]


def doc_of(kind: type) -> str:
    """The documentation of a class, indented."""
    text = re.sub(r"The same class as .*\n\n", "", inspect.getdoc(kind) or "").strip()
    return textwrap.indent(f'"""{text}\n"""' if "\n" in text else f'"""{text}"""', "    ")


OF_CAPTUM = (
    "import captum.attr",
    "from typing import Any, Literal, TypeVar",
    "from collections.abc import Callable, Sequence, Mapping",
    "from torch import Tensor, nn",
    "from safexplain.explain.hardened import Hardened",
)
OWN_OF_CAPTUM = ("GradCAM", "GradCAMPlusPlus", "TokenIG")
TENSORS = f'{ONE_OR_MANY} = TypeVar("{ONE_OR_MANY}", Tensor, tuple[Tensor, ...])'


def of_captum(name: str) -> tuple[str, str]:
    """(text of the class, of row `name`; its name in the stub)."""
    row, kind = CATALOG[name], HARDENED[name]
    public = row.native.__name__ if row.library == "captum" and not row.nt_type else kind.__name__
    base = f"captum.attr.{row.native.__name__}" if row.library == "captum" else f"_{row.native.__name__}"
    asked = []
    for one in given(kind._signature):
        if "convergence_delta" in one.name:
            asked.append(f"{one.name}: Literal[False] = False")  # it is refused
        elif one.name == "nt_type":
            asked.append(f"nt_type: Literal[{row.nt_type!r}] = {row.nt_type!r}")
        elif row.nt_type and one.name == "inputs":
            asked.append(f"inputs: {ONE_OR_MANY}")
        else:
            asked.append(parameter(one))
    result = ONE_OR_MANY if row.of != "layer" or name in ("GradCAM", "GradCAMPlusPlus", "GuidedGradCam") else MAPS
    result = "Tensor" if name == "TokenIG" else result
    made = [parameter(p) for p in given(inspect.signature(row.native.__init__))]
    if row.nt_type:
        made = ["attribution_method: captum.attr.Attribution | Callable[..., Any]"]  # a model stands for its gradient
    init, attribute = method("__init__", with_hardening(made, HARDENING), "None"), method("attribute", asked, result)
    return "\n".join([f"class {public}(Hardened, {base}):", doc_of(kind), init, attribute]), public


def captum_stub() -> str:
    """Of `safexplain.captum`."""
    names = [row.name for row in CATALOG.values() if row.library == "captum" and not row.nt_type]
    classes = dict(sorted((public, text) for text, public in map(of_captum, names)))
    imports = [*OF_CAPTUM, "from safexplain.hardening.hardening import Hardening"]
    return "\n\n".join([*imports, TENSORS, _listed(classes), *classes.values()])


def package_stub() -> str:
    """Of `safexplain`: its classes of Captum under the names that they have here."""
    own, imports = [], []
    for name in safexplain.__all__:
        row = next((r for r in CATALOG.values() if r.hardened_name == name and r.in_base), None)
        if row is not None and row.library == "captum" and not row.nt_type:
            imports.append(f"from safexplain.captum import {row.native.__name__} as {name}")
        elif row is not None:
            own.append(of_captum(row.name)[0])
        elif name != "__version__":
            library = next((lib for lib, names in _SAME.items() if name in names), None)
            if library is not None:
                imports.append(f"from safexplain.{library} import {_SAME[library][name]} as {name}")
            else:
                found = getattr(safexplain, name)
                imports.append(f"from {found.__module__} import {found.__name__} as {name}")
    native = [f"from safexplain.explain.captum import {n} as _{n}" for n in OWN_OF_CAPTUM]
    head = [*OF_CAPTUM, *native, *imports, TENSORS, "__version__: str", _listed(safexplain.__all__)]
    return "\n".join(head) + "\n\n" + "\n\n".join(own)


_SAME = {"aix360": {"HardenedProtoDash": "ProtodashExplainer"}, "shap": {f"Hardened{name}": name for name in SHAP}}
"""Library -> our name -> its name."""


def of_library(name: str, kind: type, native: Any, entries: Mapping[str, str], extra: list[str], base: str) -> str:
    """A class whose native one is held: `entries` are its methods and their results, `extra` keywords of `__init__`."""
    made = [parameter(p) for p in given(inspect.signature(native.__init__))]
    lines = [f"class {name}({base}):", doc_of(kind), method("__init__", with_hardening(made, extra), "None")]
    for entry, result in entries.items():
        if hasattr(native, entry):
            asked = [parameter(p) for p in given(inspect.signature(getattr(native, entry)))]
            added = _keywords_added(kind, entry)
            lines.append(method(entry, with_hardening(asked, added) if added else asked, result))
    return "\n".join(lines)


def _keywords_added(kind: type, entry: str) -> list[str]:
    """Keywords that a hardened method takes beside the native ones."""
    methods = [vars(owner)[entry] for owner in reversed(kind.__mro__) if inspect.isfunction(vars(owner).get(entry))]
    found = {p.name: p for m in methods for p in inspect.signature(m).parameters.values() if p.kind is p.KEYWORD_ONLY}
    return [parameter(one) for one in found.values()]


def alibi_stub() -> str:
    """Of `safexplain.alibi`."""
    explainers, imports, classes = load("alibi").explainers, [], []
    for name, kind in sorted(ALIBI.items()):
        imports.append(f"from {kind.__module__} import {kind.__name__}")
        entries = {"fit": "Self", "explain": "Explanation"}
        classes.append(of_library(name, kind, getattr(explainers, name), entries, HARDENING, kind.__name__))
    plots = [f"def {name}(exp: Explanation, **kwargs: Any) -> Any: ..." for name in sorted(_plots())]
    head = [
        "from typing import Any, Literal, Self",
        "from collections.abc import Callable, Sequence, Mapping",
        "from alibi.api.interfaces import Explanation",
        "from numpy.typing import NDArray",
        *imports,
        "from safexplain.hardening.hardening import Hardening",
        _listed([*ALIBI, *_plots()]),
    ]
    return "\n".join(head) + "\n\n" + "\n\n".join([*classes, *plots])


def _plots() -> set[str]:
    return {name for name in importlib.import_module("safexplain.alibi").__all__ if name.startswith("plot_")}


_TABLES = "bins: bool = False"
_ANSWERS = {
    "LimeTabularExplainer": "TextOrTableExplanation",
    "LimeTextExplainer": "TextOrTableExplanation",
    "LimeImageExplainer": "ImageExplanation",
}
_PROTOCOLS = '''
class TextOrTableExplanation(Protocol):
    """`lime.explanation.Explanation`, with hardened weights."""

    local_exp: dict[int, list[tuple[int, float]]]
    class_names: list[str]
    mode: str
    def available_labels(self) -> list[int]: ...
    def as_list(self, label: int = 1, **kwargs: Any) -> list[tuple[str, float]]: ...
    def as_map(self) -> dict[int, list[tuple[int, float]]]: ...
    def as_pyplot_figure(self, label: int = 1, figsize: tuple[float, float] = ..., **kwargs: Any) -> Any: ...
    def as_html(self, labels: Sequence[int] | None = None, **kwargs: Any) -> str: ...
    def save_to_file(self, file_path: str, labels: Sequence[int] | None = None, **kwargs: Any) -> None: ...
    def show_in_notebook(self, labels: Sequence[int] | None = None, **kwargs: Any) -> None: ...

class ImageExplanation(Protocol):
    """`lime.lime_image.ImageExplanation`, with hardened weights."""

    image: NDArray[Any]
    segments: NDArray[Any]
    local_exp: dict[int, list[tuple[int, float]]]
    def get_image_and_mask(
        self, label: int, positive_only: bool = True, negative_only: bool = False, hide_rest: bool = False,
        num_features: int = 5, min_weight: float = 0.0,
    ) -> tuple[NDArray[Any], NDArray[Any]]: ...
'''


def lime_stub() -> str:
    """Of `safexplain.lime`."""
    imports, classes, spaces = [], [], []
    for name, kind in sorted(LIME.items()):
        module = {"Tabular": "lime_tabular", "Image": "lime_image", "Text": "lime_text"}[name[4:-9]]
        native = getattr(importlib.import_module(f"lime.{module}"), name)
        imports.append(f"from {kind.__module__} import {kind.__name__}")
        extra = [*HARDENING, *([_TABLES] if name == "LimeTabularExplainer" else [])]
        classes.append(of_library(name, kind, native, {"explain_instance": _ANSWERS[name]}, extra, kind.__name__))
        spaces.append(f"class {module}:\n    {name} = {name}")
    head = [
        "import numpy as np",
        "from typing import Any, Literal, Protocol",
        "from collections.abc import Callable, Sequence, Mapping",
        "from numpy.typing import NDArray",
        *imports,
        "from safexplain.hardening.hardening import Hardening",
        _listed(importlib.import_module("safexplain.lime").__all__),
        _PROTOCOLS,
    ]
    return "\n".join(head) + "\n\n" + "\n\n".join([*classes, *spaces])


def aix360_stub() -> str:
    """Of `safexplain.aix360`."""
    limes = [f"from safexplain.lime import {name} as {name}" for name in sorted(LIME)]
    kind: Any = AIX360["ProtodashExplainer"]
    text = [
        "from typing import Any, Literal",
        "from numpy.typing import ArrayLike, NDArray",
        f"from {kind.__module__} import {kind.__name__}",
        *limes,
        "from safexplain.hardening.hardening import Hardening",
        _listed(AIX360),
        f"class ProtodashExplainer({kind.__name__}):",
        doc_of(kind),
        "    def __init__(self, public: ArrayLike, *, hardening: Hardening | None = None) -> None: ...",
        "    def explain(self, X: ArrayLike, Y: ArrayLike | None = None, m: int = 10,"
        ' kernelType: Literal["other", "linear", "Gaussian"] = "other", sigma: float = 2,'
        ' optimizer: Literal["cvxpy", "osqp"] = "cvxpy") -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]: ...',
    ]
    return "\n".join(text)


def shap_stub() -> str:
    """Of `safexplain.shap`: its classes have signatures of their own."""
    imports = [f"from {kind.__module__} import {kind.__name__} as {name}" for name, kind in sorted(SHAP.items())]
    own = [name for name in importlib.import_module("safexplain.shap").__all__ if name not in SHAP]
    native = [f"from shap import {name} as {name}" for name in own]
    return "\n".join(["from typing import Any", *imports, *native, _listed([*SHAP, *own])])


def _listed(names: Any) -> str:
    return f"__all__ = {sorted(names)!r}"


STUBS = {
    "__init__": package_stub, "captum": captum_stub, "alibi": alibi_stub, "aix360": aix360_stub, "lime": lime_stub,
    "shap": shap_stub,
}  # fmt: skip


def write_stubs(folder: Path = PACKAGE) -> list[Path]:
    """Write every stub into a folder, as ruff formats it."""
    note = "# Written by `make stubs` from the catalog and the native signatures; change nothing here.\n\n"
    paths = []
    for name, write in STUBS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = note + write()
        path = folder / f"{name}.pyi"
        for command in (["check", "--fix", "--quiet", "--exit-zero", "--select", "I,F401,RUF022"], ["format"]):
            line = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(PACKAGE / path.name), "-"]
            done = subprocess.run(line, input=text, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{path}: {done.stderr}\n{text}")
            text = done.stdout
        path.write_text(text)
        paths.append(path)
    return paths


if __name__ == "__main__":
    print(*write_stubs(), sep="\n")
