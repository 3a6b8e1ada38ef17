"""Check files of boosters in a child process before they are loaded, as their C++ libraries trust them.

XGBoost and LightGBM follow the numbers of nodes, features and categories in a file without checks. A malicious file may
crash the child process, which has limits of memory, time and output. There the library reads the file and writes it
again; the result is loaded here only if nodes form trees, features exist and categories are inside their lists.
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

MOST_BYTES = 1 << 30
MOST_MEMORY = 16 << 30
MOST_SECONDS = 120.0

_CHILD = """
import contextlib, os, sys
answers = os.dup(1)
os.dup2(2, 1)  # the library prints there
raw = bytearray(sys.stdin.buffer.read())
sys.modules.update(dict.fromkeys(("pandas", "sklearn", "pyarrow", "dask")))  # slow to import and not needed
with contextlib.suppress(ImportError, OSError, ValueError):  # some systems lack some of these limits
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
    """Checked JSON of an XGBoost model in JSON or UBJSON, or if `pickled` in the state of a pickled booster, and the
    parsed content. InputError: it is damaged or malicious, or takes too much memory or time to read."""
    how = "__setstate__({'handle': raw})" if pickled else "load_model(raw)"
    with _as_damaged("XGBoost", where):
        text = _read_in_child(_XGBOOST.format(how=how), bytes(raw))
        content = json.loads(text)
        _check_learner(content["learner"])
        return bytearray(text), content


def read_lightgbm(text: str, where: str) -> str:
    """Checked text of a LightGBM model, for its library; errors as for `read_xgboost`."""
    with _as_damaged("LightGBM", where):
        found = _read_in_child(_LIGHTGBM, text.encode()).decode()
        head, *trees = re.split(r"^Tree=", found.partition("end of trees")[0], flags=re.MULTILINE)
        header = _parse_lines(head)
        names = ("num_class", "num_tree_per_iteration", "max_feature_idx")
        classes, per_round, features = (int(header[name]) for name in names)
        stated = re.search(r"num_class:(\d+)", header.get("objective", ""))
        _require(classes == int(stated[1] if stated else 1), "its objective has another number of classes")
        _require(per_round in (1, classes) and len(trees) % per_round == 0, "its rounds do not match its trees")
        _require(found.count("leaf_const=") == text.count("leaf_const="), "its linear trees lack numbers")
        for tree in trees:
            _check_text_tree(_parse_lines(tree), features + 1)
        return found


@contextlib.contextmanager
def checked_boosters(where: str) -> Iterator[None]:
    """Check each booster inside another file when it is restored, as if it were a file of its own."""

    def check(booster: Any, name: str, kind: type, read: Callable[..., Any]) -> None:
        restore = booster.__setstate__

        def set_state(self: Any, state: dict[str, Any]) -> None:
            if type(state.get(name)) is not kind or not {"handle", "_handle"} & state.keys() <= {name}:
                raise InputError(f"{where} holds a booster without a model; save it again")
            read(state[name], where)
            restore(self, state)

        stack.enter_context(patch.object(booster, "__setstate__", set_state))

    with _restoring, contextlib.ExitStack() as stack:
        if library := sys.modules.get("xgboost.core"):
            check(library.Booster, "handle", bytearray, partial(read_xgboost, pickled=True))
        if library := sys.modules.get("lightgbm.basic"):
            check(library.Booster, "_handle", str, read_lightgbm)
        yield


_restoring = threading.RLock()


@contextlib.contextmanager
def _as_damaged(library: str, where: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error!s:.80}"
        raise InputError(
            f"the {library} model {where} is damaged or malicious ({reason:.300}); save it again with save_model"
        ) from None


def _read_in_child(read: str, raw: bytes) -> bytes:
    """The model as its library writes it after reading it; ValueError: the library cannot read it."""
    _require(len(raw) <= MOST_BYTES, f"it has {len(raw)} bytes, more than the limit of {MOST_BYTES}")
    command = [sys.executable, "-P", "-c", _CHILD.format(memory=MOST_MEMORY, read=read)]
    streams: dict[str, Any] = {"stderr": subprocess.PIPE, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    with tempfile.TemporaryFile() as written:
        try:
            child = subprocess.run(command, input=raw, stdout=written, timeout=MOST_SECONDS, **streams)
        except subprocess.TimeoutExpired:
            raise ValueError(f"its library takes longer than {MOST_SECONDS:.0f} s to read it") from None
        _require(child.returncode >= 0, "its library crashes when reading it")
        lines = child.stderr.decode(errors="replace").rpartition("reason: ")[2].strip().splitlines() or ["no reason"]
        _require(child.returncode == 0, f"its library cannot read it: {lines[-1]}")
        written.seek(0)
        return written.read()


def _require(holds: Any, reason: str) -> None:
    if not holds:
        raise ValueError(reason)


def _integers(values: Any, least: int, below: int, what: str, count: int | None = None) -> NDArray[np.int64]:
    """Integers in [least, below), `count` of them; ValueError: others."""
    found = np.asarray([int(v) for v in values], dtype=np.int64)
    _require(count in (None, len(found)) and ((found >= least) & (found < below)).all(), f"{what} are out of range")
    return found


def _boundaries(edges: Any, count: int, what: str) -> NDArray[np.int64]:
    """Positions that divide a list of `count` items into parts; ValueError: others."""
    found = _integers(edges, 0, count + 1, what)
    _require(found[0] == 0 and found[-1] == count and (np.diff(found) >= 0).all(), f"{what} do not match their list")
    return found


def _check_learner(learner: Mapping[str, Any]) -> None:
    header, boosted = learner["learner_model_param"], learner["gradient_booster"]
    features, classes = int(header["num_feature"]), max(int(header["num_class"]), 1)
    bases = len(str(header["base_score"]).split(","))
    _require(bases in (1, classes) and int(header.get("num_target", 1)) <= 1, f"{bases} base scores or several targets")
    for name in ("feature_names", "feature_types"):
        _require(len(learner.get(name, ())) in (0, features), f"its {name} do not match its features")
    if boosted["name"] == "gblinear":
        weights = len(boosted["model"]["weights"])
        _require(weights == (features + 1) * classes, "its weights do not match its features and classes")
        return
    model = boosted.get("gbtree", boosted)["model"]
    trees = len(model["trees"])
    _require(len(boosted.get("weight_drop", model["trees"])) == trees, "its weights of trees do not match its trees")
    _require(classes <= max(trees, 2), f"it has {classes} classes but {trees} trees")
    _integers(model["tree_info"], 0, classes, "classes of trees", trees)
    _boundaries(model.get("iteration_indptr", [0, trees]), trees, "rounds")
    for tree in model["trees"]:
        _check_tree(tree, features)
    names = model.get("cats") or {}
    if names.get("enc"):  # categories of data frames, since XGBoost 3.1
        edges = _boundaries(names["feature_segments"], len(names["sorted_idx"]), "names of categories")
        for one, start, end in zip(names["enc"], edges[:-1], edges[1:], strict=True):
            ends = one.get("offsets") or [*range(len(one["values"]) + 1)]
            _boundaries(ends, len(one["values"]), "names of categories")
            order = sorted(names["sorted_idx"][start:end])
            _require(order == [*range(len(ends) - 1)], "its categories do not match their number")


def _check_tree(tree: Mapping[str, Any], features: int) -> None:
    n = int(tree["tree_param"]["num_nodes"])
    left, right = (_integers(tree[side], -1, n, "nodes", n) for side in ("left_children", "right_children"))
    parents, inner = _integers(tree["parents"], -1, 2**31, "nodes", n), left != -1
    children, owners = np.concatenate([left[inner], right[inner]]), np.tile(np.flatnonzero(inner), 2)
    _require(n and (right[~inner] == -1).all() and (children > 0).all(), "nodes point outside their tree")
    once = len(np.unique(children)) == len(children) and (parents[children] == owners).all()
    _require(once and ((parents < n) | (parents == 2**31 - 1)).all(), "a node has two parents or a wrong one")
    _integers(np.asarray(tree["split_indices"])[inner], 0, features, "features")
    _require(int(tree["tree_param"].get("size_leaf_vector", 1)) <= 1, "a tree has several outputs")
    listed = _integers(tree.get("categories", ()), 0, 2**24, "categories")
    at = _integers(tree.get("categories_nodes", ()), 0, n, "nodes")
    first = _integers(tree.get("categories_segments", ()), 0, len(listed) + 1, "categories", len(at))
    size = _integers(tree.get("categories_sizes", ()), 1, len(listed) + 1, "categories", len(at))
    _require((first + size <= len(listed)).all(), "categories are outside their list")
    kinds = np.asarray(tree.get("split_type") or [0] * n)
    _require(at.tolist() == np.flatnonzero(kinds == 1).tolist(), "its splits on categories have no categories")


def _parse_lines(text: str) -> dict[str, str]:
    return {name: value for name, sign, value in (line.partition("=") for line in text.splitlines()) if sign}


def _check_text_tree(tree: Mapping[str, str], features: int) -> None:
    leaves, sets = int(tree["num_leaves"]), int(tree["num_cat"])
    if "num_features" in tree:  # linear models in the leaves
        counts = _integers(tree["num_features"].split(), 0, features + 1, "features", leaves)
        _integers(tree["leaf_features"].split(), 0, features, "features", int(counts.sum()))
    if leaves == 1:
        return
    children = sorted(int(child) for side in ("left_child", "right_child") for child in tree[side].split())
    expected = [*range(-leaves, 0), *range(1, leaves - 1)]
    _require(children == expected, "nodes point outside their tree or in a circle")
    _integers(tree["split_feature"].split(), 0, features, "features", leaves - 1)
    kinds = _integers(tree["decision_type"].split(), 0, 16, "kinds of nodes", leaves - 1)
    _integers(np.array(tree["threshold"].split(), dtype=np.float64)[(kinds & 1) == 1], 0, sets, "categories")
    if sets:
        edges = _boundaries(tree["cat_boundaries"].split(), len(tree["cat_threshold"].split()), "categories")
        _require(len(edges) == sets + 1, "its categories do not match their number")
