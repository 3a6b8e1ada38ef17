"""Answers and what accounts for them cannot be changed; plain values compare by value, what holds arrays does not."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from safexplain import _privacy_loss, recourse

BY_VALUE = {
    "Constraints", "Epsilons", "Feature", "Guarantee", "L1", "L2", "MAD", "Pair", "Rule", "SearchOptions", "Steps",
    "_Scaled", "letters.Change",
}  # fmt: skip
"""Of numbers, names and tuples alone."""

CHANGED = {
    "DPModelRecourse", "LaplaceScore", "Preprocessing", "RecourseMechanism",  # by set_params alone
    "Program", "program.Change", "program._Search",  # while a program is made and solved
}  # fmt: skip

STATES = {"_ActiveRows", "_State"}
"""Of a search of networks: changed, and never compared."""


def dataclasses_of(package):
    """Name -> every dataclass in a package; where two have one name, with their module."""
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for name, kind in vars(importlib.import_module(info.name)).items():
            if inspect.isclass(kind) and kind.__module__ == info.name and "__dataclass_params__" in vars(kind):
                module = info.name.rpartition(".")[2]
                yield f"{module}.{name}" if name in ("Change", "_Search") else name, kind


def test_only_these_compare_by_value_and_only_these_can_be_changed():
    kinds = {name: kind for package in (recourse, _privacy_loss) for name, kind in dataclasses_of(package)}
    parameters = {name: kind.__dataclass_params__ for name, kind in kinds.items()}
    assert {name for name, given in parameters.items() if given.eq} == BY_VALUE | STATES
    assert {name for name, given in parameters.items() if not given.frozen} == CHANGED | STATES
