"""Whether a booster's file can be handed to its library, whose C++ believes what it reads.

XGBoost and LightGBM follow the numbers of nodes, features and categories in a file wherever they point. Such a file can
crash the process, or write where it should not. So it is read here first, and accepted where its nodes form trees, its
features exist and its categories are inside of their lists.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError

__all__ = ["check_lightgbm", "check_xgboost", "checked_boosters"]

MOST_DEPTH = 64
"""Of lists and objects inside each other, in what XGBoost writes; a tree is flat lists."""

MOST_CATEGORY = 2**24
"""Categories are numbers below it, in XGBoost."""

_UBJ_NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}

Ints = NDArray[np.int64]


class _Wrong(ValueError):
    """Why a file is refused."""


def check_xgboost(raw: bytes | bytearray, where: str) -> dict[str, Any]:
    """The content of XGBoost's JSON or UBJSON, of a booster that its library can be given.

    Raises:
        InputError: it is damaged, or points outside of itself.
    """
    try:
        content = _content(bytes(raw))
        _check_learner(_of(content.get("Model", content), "learner"))
    except (_Wrong, KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise _refused("XGBoost", where, error) from None
    return content


def check_lightgbm(text: str, where: str) -> None:
    """Refuse LightGBM's text where its library would follow a number out of a tree.

    Raises:
        InputError: it is damaged, or points outside of itself.
    """
    try:
        _check_text(text)
    except (_Wrong, KeyError, ValueError, IndexError, OverflowError) as error:
        raise _refused("LightGBM", where, error) from None


def _refused(library: str, where: str, error: Exception) -> InputError:
    why = f"{error}" if isinstance(error, _Wrong) else f"{type(error).__name__}: {error!s:.80}"
    return InputError(
        f"the {library} model {where} is damaged or made to do harm ({why}); save it again with save_model"
    )


_state = threading.local()
_installing = threading.Lock()


@contextlib.contextmanager
def checked_boosters(where: str) -> Iterator[None]:
    """While boosters inside of other files are restored: each is checked before its library sees it."""
    with _installing:
        for module, name, kinds, check in (
            ("xgboost.core", "handle", (bytearray,), check_xgboost),
            ("lightgbm.basic", "_handle", (str,), check_lightgbm),
        ):
            _install(module, name, kinds, check)
    before, _state.where = getattr(_state, "where", None), where
    try:
        yield
    finally:
        _state.where = before


def _install(module: str, name: str, kinds: tuple[type, ...], check: Callable[[Any, str], Any]) -> None:
    kind = getattr(sys.modules.get(module), "Booster", None)
    if kind is None or hasattr(kind.__setstate__, "unchecked"):
        return
    restore = kind.__setstate__

    def checked(self: Any, state: dict[str, Any]) -> None:
        where = getattr(_state, "where", None)
        if where is not None:
            held = state.get(name)
            if type(held) not in kinds or ("handle" in state and name != "handle"):
                raise InputError(f"{where} holds a booster without a model; save it again")
            check(held, where)
        restore(self, state)

    checked.unchecked = restore  # type: ignore[attr-defined]
    kind.__setstate__ = checked


# ----------------------------------------------------------------------------------------------------------- XGBoost


def _content(raw: bytes) -> dict[str, Any]:
    if re.match(rb'\{\s*"', raw):
        _check_depth(raw)
        found = json.loads(raw, object_pairs_hook=_once)
    else:
        found, end = _ubj(raw, 0, 0)
        if end != len(raw):
            raise _Wrong(f"{len(raw) - end} bytes follow its end")
    if not isinstance(found, dict):
        raise _Wrong("it is no object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Wrong("a name stands twice in one object")
    return found


def _check_depth(raw: bytes) -> None:
    deep = most = 0
    for sign in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', raw):
        start = sign[0][:1]
        deep += (start in b"[{") - (start in b"]}")
        most = max(most, deep)
    if most > MOST_DEPTH:
        raise _Wrong(f"{most} lists or objects are inside each other")


def _ubj(raw: bytes, at: int, deep: int) -> tuple[Any, int]:
    """One value of UBJSON from a place, and where it ends."""
    if deep > MOST_DEPTH:
        raise _Wrong(f"more than {MOST_DEPTH} lists or objects are inside each other")
    kind, at = raw[at : at + 1].decode("latin-1"), at + 1
    if kind in _UBJ_NUMBERS:
        return _ubj_number(raw, at, kind)
    if kind in ("T", "F", "Z"):
        return {"T": True, "F": False, "Z": None}[kind], at
    if kind == "S":
        return _ubj_text(raw, at)
    if kind == "[":
        return _ubj_list(raw, at, deep)
    if kind == "{":
        pairs: list[tuple[str, Any]] = []
        while raw[at : at + 1] != b"}":
            name, at = _ubj_text(raw, at)
            value, at = _ubj(raw, at, deep + 1)
            pairs.append((name, value))
        return _once(pairs), at + 1
    raise _Wrong(f"byte {at - 1} starts no value of UBJSON")


def _ubj_list(raw: bytes, at: int, deep: int) -> tuple[Any, int]:
    if raw[at : at + 1] == b"$":
        kind = raw[at + 1 : at + 2].decode("latin-1")
        if kind not in _UBJ_NUMBERS or raw[at + 2 : at + 3] != b"#":
            raise _Wrong(f"byte {at} starts no list of numbers")
        count, at = _ubj_size(raw, at + 3)
        dtype = np.dtype(_UBJ_NUMBERS[kind])
        if count > (len(raw) - at) // dtype.itemsize:
            raise _Wrong("a list is longer than the file")
        return np.frombuffer(raw, dtype, count, at).tolist(), at + count * dtype.itemsize
    found: list[Any] = []
    if raw[at : at + 1] == b"#":
        count, at = _ubj_size(raw, at + 1)
        if count > len(raw) - at:
            raise _Wrong("a list is longer than the file")
        for _ in range(count):
            value, at = _ubj(raw, at, deep + 1)
            found.append(value)
        return found, at
    while raw[at : at + 1] != b"]":
        value, at = _ubj(raw, at, deep + 1)
        found.append(value)
    return found, at + 1


def _ubj_number(raw: bytes, at: int, kind: str) -> tuple[Any, int]:
    dtype = np.dtype(_UBJ_NUMBERS[kind])
    if at + dtype.itemsize > len(raw):
        raise _Wrong("it is cut short")
    return np.frombuffer(raw, dtype, 1, at)[0].item(), at + dtype.itemsize


def _ubj_size(raw: bytes, at: int) -> tuple[int, int]:
    if raw[at : at + 1].decode("latin-1") not in "iUIlL" or at >= len(raw):
        raise _Wrong(f"byte {at} starts no length")
    size, end = _ubj_number(raw, at + 1, chr(raw[at]))
    if size < 0:
        raise _Wrong("a length is negative")
    return int(size), end


def _ubj_text(raw: bytes, at: int) -> tuple[str, int]:
    size, at = _ubj_size(raw, at)
    if size > len(raw) - at:
        raise _Wrong("a text is longer than the file")
    return raw[at : at + size].decode("utf-8"), at + size


def _of(value: Any, name: str) -> Any:
    if not isinstance(value, Mapping) or name not in value:
        raise _Wrong(f"it has no {name}")
    return value[name]


def _check_learner(learner: Any) -> None:
    told = _of(learner, "learner_model_param")
    features, classes, targets = (int(told.get(name, 1)) for name in ("num_feature", "num_class", "num_target"))
    if features < 0 or classes < 0 or targets not in (0, 1):
        raise _Wrong(f"{features} features, {classes} classes and {targets} targets")
    bases = [float(b) for b in str(told.get("base_score", "0.5")).strip("[]").split(",")]
    if len(bases) not in (1, max(classes, 1)):
        raise _Wrong(f"{len(bases)} base scores for {classes} classes")
    for name in ("feature_names", "feature_types"):
        if len(learner.get(name, ())) not in (0, features):
            raise _Wrong(f"{len(learner[name])} {name} for {features} features")
    boosted = _of(learner, "gradient_booster")
    kind = _of(boosted, "name")
    if kind == "gblinear":
        if len(_of(_of(boosted, "model"), "weights")) != (features + 1) * max(classes, 1):
            raise _Wrong("its weights are not as many as its features and classes")
        return
    if kind not in ("gbtree", "dart"):
        raise _Wrong(f"its booster is {kind!r:.20}")
    model = _of(_of(boosted, "gbtree") if kind == "dart" else boosted, "model")
    trees = _of(model, "trees")
    if kind == "dart" and len(_of(boosted, "weight_drop")) != len(trees):
        raise _Wrong("it weighs other trees than it has")
    if classes > max(len(trees), 2):
        raise _Wrong(f"{classes} classes of {len(trees)} trees")
    _whole("tree_info", _of(model, "tree_info"), len(trees), 0, max(classes, 1))
    rounds = model.get("iteration_indptr")
    if rounds is not None:
        steps = _whole("iteration_indptr", rounds, len(rounds), 0, len(trees) + 1)
        if len(steps) and (steps[0] != 0 or steps[-1] != len(trees) or (np.diff(steps) < 0).any()):
            raise _Wrong("its rounds are not of its trees")
    for number, tree in enumerate(trees):
        if int(tree.get("id", number)) != number:
            raise _Wrong("its trees are not numbered as they stand")
        _check_tree(tree, features)
    _check_categories(model.get("cats"), features)


def _check_tree(tree: Mapping[str, Any], features: int) -> None:
    told = _of(tree, "tree_param")
    n = int(told["num_nodes"])
    if n < 1 or int(told.get("size_leaf_vector", 1)) not in (0, 1) or int(told.get("num_feature", features)) > features:
        raise _Wrong("a tree has no nodes, several outputs, or features of its own")
    left, right = (_whole(side, tree[side], n, -1, n) for side in ("left_children", "right_children"))
    inner = left != -1
    used = _forms_tree(left[inner], right[inner], np.flatnonzero(inner), n)
    if (right[~inner] != -1).any():
        raise _Wrong("a leaf has a child")
    parents = _whole("parents", tree["parents"], n, -1, 2**31)
    for child, parent in used.items():
        if parents[child] != parent:
            raise _Wrong("a node is not its child's parent")
    if any(not (parents[node] in (-1, 2**31 - 1) or parents[node] < n) for node in range(n)):
        raise _Wrong("a node's parent is outside of its tree")
    split = _whole("split_indices", tree["split_indices"], n, 0, 2**31)
    if (split[inner] >= features).any():
        raise _Wrong("a tree splits on a feature that there is not")
    kinds = _whole("split_type", tree.get("split_type") or [0] * n, n, 0, 2)
    nodes, starts, sizes = (tree.get(f"categories_{name}") or [] for name in ("nodes", "segments", "sizes"))
    listed = _whole("categories", tree.get("categories") or [], None, 0, MOST_CATEGORY)
    at = _whole("categories_nodes", nodes, None, 0, n)
    first = _whole("categories_segments", starts, len(at), 0, len(listed) + 1)
    size = _whole("categories_sizes", sizes, len(at), 1, len(listed) + 1)
    if (first + size > len(listed)).any() or (np.diff(at) <= 0).any():
        raise _Wrong("a node's categories are outside of their list")
    if at.tolist() != np.flatnonzero(kinds == 1).tolist():
        raise _Wrong("nodes that split on categories have none")


def _forms_tree(left: Ints, right: Ints, owner: Ints, n: int) -> dict[int, int]:
    """Children -> parents; no node has two, nor is the first node one: so what is below it is a tree."""
    children = np.concatenate([left, right])
    if (children < 1).any() or (children >= n).any() or len(np.unique(children)) != len(children):
        raise _Wrong("a tree's nodes point outside of it, or in a circle")
    return dict(zip(children.tolist(), [*owner.tolist(), *owner.tolist()], strict=True))


def _check_categories(cats: Any, features: int) -> None:
    """Names of categories, which XGBoost 3.1 and later keep of data frames."""
    if not cats or not cats.get("enc"):
        return
    segments = _whole("feature_segments", cats["feature_segments"], features + 1, 0, 2**31)
    if len(cats["enc"]) != features or segments[0] != 0 or (np.diff(segments) < 0).any():
        raise _Wrong("it names categories of other features than it has")
    sizes = np.diff(segments)
    order = _whole("sorted_idx", cats["sorted_idx"], int(segments[-1]), 0, 2**31)
    for one, size, start in zip(cats["enc"], sizes.tolist(), segments.tolist(), strict=False):
        values, offsets = one["values"], one.get("offsets")
        if offsets is not None:
            ends = _whole("offsets", offsets, size + 1 if size else None, 0, len(values) + 1)
            if size and (ends[0] != 0 or ends[-1] != len(values) or (np.diff(ends) < 0).any()):
                raise _Wrong("names of categories are outside of their list")
        elif len(values) != size:
            raise _Wrong("it has other categories than it counts")
        if sorted(order[start : start + size].tolist()) != list(range(size)):
            raise _Wrong("categories are not sorted among themselves")


def _whole(name: str, values: Any, count: int | None, least: int, below: int) -> Ints:
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise _Wrong(f"{name} is no list of {count} numbers")
    if any(type(v) not in (int, bool) for v in values):
        raise _Wrong(f"{name} holds what is no whole number")
    if values and (min(values) < least or max(values) >= below):
        raise _Wrong(f"{name} holds a number below {least}, or not below {below}")
    return np.asarray(values, dtype=np.int64)


# ---------------------------------------------------------------------------------------------------------- LightGBM


def _check_text(text: str) -> None:
    if "\0" in text:
        raise _Wrong("it holds a null character")
    head, *blocks = re.split(r"^Tree=", text, flags=re.MULTILINE)
    told = _lines(head)
    per_round, classes = int(told["num_tree_per_iteration"]), int(told["num_class"])
    features = int(told["max_feature_idx"]) + 1
    if not 1 <= per_round <= max(len(blocks), 1) or not 1 <= classes <= max(len(blocks), 1) or features < 1:
        raise _Wrong(f"{classes} classes, {per_round} trees a round and {features} features")
    stated = re.search(r"num_class:(\d+)", told.get("objective", ""))
    if stated and int(stated[1]) != classes:
        raise _Wrong("its objective is about other classes than it counts")
    if len(blocks) % per_round or per_round not in (1, classes):
        raise _Wrong("its rounds are not of its trees")
    if "tree_sizes" in told and blocks:
        sizes = [int(size) for size in told["tree_sizes"].split()]
        lengths = [len(f"Tree={block}".partition("end of trees")[0].encode()) for block in blocks]
        if sizes != lengths:
            raise _Wrong("its trees have other sizes than it states")
    for number, block in enumerate(blocks):
        if not block.startswith(f"{number}\n"):
            raise _Wrong("its trees are not numbered as they stand")
        _check_block(_lines(block.partition("end of trees")[0]), features)


def _lines(text: str) -> dict[str, str]:
    pairs = [line.partition("=") for line in text.splitlines() if "=" in line]
    return _once([(name, value) for name, _, value in pairs])


def _check_block(tree: Mapping[str, str], features: int) -> None:
    leaves, categorical = int(tree["num_leaves"]), int(tree["num_cat"])
    if not 1 <= leaves <= 2**20 or not 0 <= categorical < leaves:
        raise _Wrong(f"a tree of {leaves} leaves and {categorical} splits on categories")
    if len(tree["leaf_value"].split()) != leaves:
        raise _Wrong("a tree has other leaves than it counts")
    if tree.get("is_linear", "0").strip() not in ("0", ""):
        _check_linear(tree, leaves, features)
    if leaves == 1:
        return
    left, right = (_numbers(tree, side, leaves - 1, -leaves, leaves - 1) for side in ("left_child", "right_child"))
    children = np.concatenate([left, right])
    if sorted(children.tolist()) != [*range(-leaves, 0), *range(1, leaves - 1)]:
        raise _Wrong("a tree's nodes point outside of it, or in a circle")
    _numbers(tree, "split_feature", leaves - 1, 0, features)
    kinds = _numbers(tree, "decision_type", leaves - 1, 0, 16)
    cuts = tree["threshold"].split()
    if len(cuts) != leaves - 1:
        raise _Wrong("a tree has other thresholds than nodes")
    if categorical == 0:
        if (kinds & 1).any():
            raise _Wrong("nodes that split on categories have none")
        return
    words = _numbers(tree, "cat_threshold", None, 0, 2**32)
    edges = _numbers(tree, "cat_boundaries", categorical + 1, 0, len(words) + 1)
    if edges[0] != 0 or edges[-1] != len(words) or (np.diff(edges) < 0).any():
        raise _Wrong("categories are outside of their list")
    for cut, kind in zip(cuts, kinds.tolist(), strict=True):
        if kind & 1 and not 0 <= int(float(cut)) < categorical:
            raise _Wrong("a node's categories are outside of their list")


def _check_linear(tree: Mapping[str, str], leaves: int, features: int) -> None:
    counts = _numbers(tree, "num_features", leaves, 0, features + 1)
    _numbers(tree, "leaf_features", int(counts.sum()), 0, features)
    if len(tree["leaf_coeff"].split()) != counts.sum() or len(tree["leaf_const"].split()) != leaves:
        raise _Wrong("a tree has other coefficients than features")


def _numbers(tree: Mapping[str, str], name: str, count: int | None, least: int, below: int) -> Ints:
    return _whole(name, [int(v) for v in tree[name].split()], count, least, below)
