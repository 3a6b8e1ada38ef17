"""Files of boosters, read by their library in a child process first, since its C++ believes what it reads.

XGBoost and LightGBM follow the numbers of nodes, features and categories in a file wherever they point. The child may
crash on such a file; it has limits of memory, time and output. What it read is written out again by the library, and
accepted where nodes form trees, features exist and categories are inside of their lists. Only this is loaded here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError

__all__ = ["checked_boosters", "read_lightgbm", "read_xgboost"]

MOST_BYTES = 1 << 30
MOST_MEMORY = 16 << 30
MOST_SECONDS = 120.0

_CHILD = """
import contextlib, os, sys
answers = os.dup(1)
os.dup2(2, 1)  # where the library prints
raw = bytearray(sys.stdin.buffer.read())
sys.modules.update(dict.fromkeys(("pandas", "sklearn", "pyarrow", "dask")))  # what reading does without, and is slow
with contextlib.suppress(ImportError, OSError, ValueError):  # some systems have not all of these limits
    import resource
    for name, most in (("FSIZE", 16 * len(raw) + (64 << 20)), ("CORE", 0), ("AS", {memory})):
        kind = getattr(resource, f"RLIMIT_{{name}}")
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
try:
    {read}
except Exception as error:
    lines = str(error).splitlines()
    sys.exit("reason: " + next((line for line in lines if "Check failed" in line or "rror" in line), str(error)))
with os.fdopen(answers, "wb") as file:
    file.write(found)
"""
_XGBOOST = "import xgboost; model = xgboost.Booster(); model.{how}; found = model.save_raw('json')"
_LIGHTGBM = (
    "import lightgbm; found = lightgbm.Booster(model_str=raw.decode()).model_to_string(num_iteration=-1).encode()"
)


def read_xgboost(raw: bytes | bytearray, where: str, *, pickled: bool = False) -> tuple[bytearray, dict[str, Any]]:
    """XGBoost's JSON of a model, to be given to its library, and the content of it; of its JSON or UBJSON, or, where
    `pickled`, of what a pickle of a booster holds.

    Raises:
        InputError: it is damaged, points outside of itself, or takes too much memory or time to read.
    """
    how = "__setstate__({'handle': raw})" if pickled else "load_model(raw)"
    with _refusing("XGBoost", where):
        text = _read_in_child(_XGBOOST.format(how=how), bytes(raw))
        content = json.loads(text)
        _check_learner(content["learner"])
        return bytearray(text), content


def read_lightgbm(text: str, where: str) -> str:
    """LightGBM's text of a model, to be given to its library; errors are those of `read_xgboost`."""
    with _refusing("LightGBM", where):
        found = _read_in_child(_LIGHTGBM, text.encode()).decode()
        head, *trees = re.split(r"^Tree=", found.partition("end of trees")[0], flags=re.MULTILINE)
        told = _lines(head)
        classes, a_round, features = (int(told[n]) for n in ("num_class", "num_tree_per_iteration", "max_feature_idx"))
        stated = re.search(r"num_class:(\d+)", told.get("objective", ""))
        _require(classes == int(stated[1] if stated else 1), "its objective is about other classes than it counts")
        _require(a_round in (1, classes) and len(trees) % a_round == 0, "its rounds are not of its trees")
        _require(found.count("leaf_const=") == text.count("leaf_const="), "its linear trees lack numbers")
        for tree in trees:
            _check_text_tree(_lines(tree), features + 1)
        return found


@contextlib.contextmanager
def checked_boosters(where: str) -> Iterator[None]:
    """While boosters inside of other files are restored: each is read as a file of its own."""

    def check(booster: Any, name: str, kind: type, read: Callable[..., Any]) -> None:
        restore = booster.__setstate__

        def set_state(self: Any, state: dict[str, Any]) -> None:
            if type(state.get(name)) is not kind or not {"handle", "_handle"} & state.keys() <= {name}:
                raise InputError(f"{where} holds a booster without a model; save it again")
            read(state[name], where)
            restore(self, state)

        stack.enter_context(patch.object(booster, "__setstate__", set_state))

    with _one_at_a_time, contextlib.ExitStack() as stack:
        if library := sys.modules.get("xgboost.core"):
            check(library.Booster, "handle", bytearray, partial(read_xgboost, pickled=True))
        if library := sys.modules.get("lightgbm.basic"):
            check(library.Booster, "_handle", str, read_lightgbm)
        yield


_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def _refusing(library: str, where: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error!s:.80}"
        raise InputError(
            f"the {library} model {where} is damaged or made to do harm ({reason:.300}); save it again with save_model"
        ) from None


def _read_in_child(read: str, raw: bytes) -> bytes:
    """What the library writes of a model that it has read; ValueError where it cannot."""
    _require(len(raw) <= MOST_BYTES, f"it has {len(raw)} bytes, and at most {MOST_BYTES} are read")
    command = [sys.executable, "-P", "-c", _CHILD.format(memory=MOST_MEMORY, read=read)]
    streams: dict[str, Any] = {"stderr": subprocess.PIPE, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    with tempfile.TemporaryFile() as written:
        try:
            child = subprocess.run(command, input=raw, stdout=written, timeout=MOST_SECONDS, **streams)
        except subprocess.TimeoutExpired:
            raise ValueError(f"its library does not come to an end within {MOST_SECONDS:.0f} s of reading it") from None
        _require(child.returncode >= 0, "its library crashes when it reads it")
        said = child.stderr.decode(errors="replace").rpartition("reason: ")[2].strip().splitlines() or ["no reason"]
        _require(child.returncode == 0, f"its library cannot read it: {said[-1]}")
        written.seek(0)
        return written.read()


def _require(holds: Any, reason: str) -> None:
    if not holds:
        raise ValueError(reason)


def _whole(values: Any, least: int, below: int, what: str, count: int | None = None) -> NDArray[np.int64]:
    """Whole numbers in [least, below), so many of them."""
    found = np.asarray([int(v) for v in values], dtype=np.int64)
    _require(count in (None, len(found)) and ((found >= least) & (found < below)).all(), f"{what} point outside of it")
    return found


def _rise(edges: Any, count: int, what: str) -> NDArray[np.int64]:
    """Places where the parts of a list of so many items begin and end."""
    found = _whole(edges, 0, count + 1, what)
    _require(found[0] == 0 and found[-1] == count and (np.diff(found) >= 0).all(), f"{what} are not of their list")
    return found


def _check_learner(learner: Mapping[str, Any]) -> None:
    told, boosted = learner["learner_model_param"], learner["gradient_booster"]
    features, classes = int(told["num_feature"]), max(int(told["num_class"]), 1)
    bases = len(str(told["base_score"]).split(","))
    _require(bases in (1, classes) and int(told.get("num_target", 1)) <= 1, f"{bases} base scores, or several targets")
    for name in ("feature_names", "feature_types"):
        _require(len(learner.get(name, ())) in (0, features), f"it has not one of {name} for each feature")
    if boosted["name"] == "gblinear":
        weights = len(boosted["model"]["weights"])
        _require(weights == (features + 1) * classes, "its weights are not as many as its features and classes")
        return
    model = boosted.get("gbtree", boosted)["model"]
    trees = len(model["trees"])
    _require(len(boosted.get("weight_drop", model["trees"])) == trees, "it weighs other trees than it has")
    _require(classes <= max(trees, 2), f"{classes} classes of {trees} trees")
    _whole(model["tree_info"], 0, classes, "classes of trees", trees)
    _rise(model.get("iteration_indptr", [0, trees]), trees, "rounds")
    for tree in model["trees"]:
        _check_tree(tree, features)
    names = model.get("cats") or {}
    if names.get("enc"):  # of categories of data frames, from XGBoost 3.1 on
        edges = _rise(names["feature_segments"], len(names["sorted_idx"]), "names of categories")
        for one, start, end in zip(names["enc"], edges[:-1], edges[1:], strict=True):
            ends = one.get("offsets") or [*range(len(one["values"]) + 1)]
            _rise(ends, len(one["values"]), "names of categories")
            order = sorted(names["sorted_idx"][start:end])
            _require(order == [*range(len(ends) - 1)], "it has other categories than it counts")


def _check_tree(tree: Mapping[str, Any], features: int) -> None:
    n = int(tree["tree_param"]["num_nodes"])
    left, right = (_whole(tree[side], -1, n, "nodes", n) for side in ("left_children", "right_children"))
    parents, inner = _whole(tree["parents"], -1, 2**31, "nodes", n), left != -1
    children, owners = np.concatenate([left[inner], right[inner]]), np.tile(np.flatnonzero(inner), 2)
    _require(n and (right[~inner] == -1).all() and (children > 0).all(), "nodes point outside of their tree")
    once = len(np.unique(children)) == len(children) and (parents[children] == owners).all()
    _require(once and ((parents < n) | (parents == 2**31 - 1)).all(), "a node has two parents, or another one")
    _whole(np.asarray(tree["split_indices"])[inner], 0, features, "features")
    _require(int(tree["tree_param"].get("size_leaf_vector", 1)) <= 1, "a tree has several outputs")
    listed = _whole(tree.get("categories", ()), 0, 2**24, "categories")
    at = _whole(tree.get("categories_nodes", ()), 0, n, "nodes")
    first = _whole(tree.get("categories_segments", ()), 0, len(listed) + 1, "categories", len(at))
    size = _whole(tree.get("categories_sizes", ()), 1, len(listed) + 1, "categories", len(at))
    _require((first + size <= len(listed)).all(), "categories are outside of their list")
    kinds = np.asarray(tree.get("split_type") or [0] * n)
    _require(at.tolist() == np.flatnonzero(kinds == 1).tolist(), "nodes that split on categories have none")


def _lines(text: str) -> dict[str, str]:
    return {name: value for name, sign, value in (line.partition("=") for line in text.splitlines()) if sign}


def _check_text_tree(tree: Mapping[str, str], features: int) -> None:
    leaves, sets = int(tree["num_leaves"]), int(tree["num_cat"])
    if "num_features" in tree:  # of linear models in the leaves
        counts = _whole(tree["num_features"].split(), 0, features + 1, "features", leaves)
        _whole(tree["leaf_features"].split(), 0, features, "features", int(counts.sum()))
    if leaves == 1:
        return
    children = sorted(int(child) for side in ("left_child", "right_child") for child in tree[side].split())
    whole = [*range(-leaves, 0), *range(1, leaves - 1)]
    _require(children == whole, "nodes point outside of their tree, or in a circle")
    _whole(tree["split_feature"].split(), 0, features, "features", leaves - 1)
    kinds = _whole(tree["decision_type"].split(), 0, 16, "kinds of nodes", leaves - 1)
    _whole(np.array(tree["threshold"].split(), dtype=np.float64)[(kinds & 1) == 1], 0, sets, "categories")
    if sets:
        edges = _rise(tree["cat_boundaries"].split(), len(tree["cat_threshold"].split()), "categories")
        _require(len(edges) == sets + 1, "it has other categories than it counts")
