"""What the shell may complete: names of explainers and attacks, found without importing PyTorch.

The shell waits while these run, so the names are read from the source of this package's tables and nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import safexplain

PACKAGE = Path(safexplain.__file__).parent
TABLE = "ATTACK_NAMES"


def explainers(incomplete: str) -> list[str]:
    """Names of methods that begin so; after a comma, the next of several."""
    return _listed(method_names(), incomplete)


def attacks(incomplete: str) -> list[str]:
    """Names of attacks that begin so; after a comma, the next of several."""
    return _listed(attack_names(), incomplete)


def one_of(*names: str) -> Callable[[str], list[str]]:
    """A completion from a fixed list."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


hardenings = one_of("recommended", "none", "deepleak")
outputs = one_of("probability", "logit")
splits = one_of("certification", "selection")
devices = one_of("auto", "cpu", "cuda")
architectures = one_of("timm:", "torchvision:", "hf:", "hf-pretrained:")


def method_names() -> list[str]:
    """Names of the catalog's rows, in its order."""
    return first_arguments(PACKAGE / "explain" / "catalog.py", "Row", "_layer", "_neuron")


def attack_names() -> list[str]:
    """Names of attacks, in the order in which reports explain them."""
    tree = ast.parse((PACKAGE / "verdict" / "words.py").read_text(encoding="utf-8"))
    tables = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == TABLE
    ]
    return [key for table in tables for key in ast.literal_eval(table)]


def first_arguments(path: Path, *functions: str) -> list[str]:
    """The first argument, a text or the last part of a dotted name, of every call of these functions in a file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) in functions and node.args):
            continue
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            found.append((first.lineno, first.value))
        elif isinstance(first, ast.Attribute) and isinstance(first.value, ast.Name) and not first.attr.startswith("_"):
            found.append((first.lineno, first.attr))
    return list(dict.fromkeys(name for _, name in sorted(found)))


def _listed(names: list[str], incomplete: str) -> list[str]:
    before, comma, begun = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(begun) and name not in before.split(",")]
