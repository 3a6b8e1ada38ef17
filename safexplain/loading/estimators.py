"""Load classifiers of scikit-learn, XGBoost and LightGBM from files without running code in them.

A child process with limits of memory, time and output reads a booster first and writes it again, as its C++ library
follows numbers of nodes, features and categories without checks; they are checked before the result is loaded.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from safexplain._digest import sha256
from safexplain.errors import InputError, MissingExtraError
from safexplain.loading.files import (
    as_input_error,
    current_directory_importable,
    is_safetensors,
    one_line,
    read_bytes,
    require,
)
from safexplain.outputs import OBJECTIVES, classifier_of

Format = Literal["skops", "pickle", "xgboost", "lightgbm"]

FILES = "a skops file, an XGBoost model (.json, .ubj), a LightGBM model (.txt), or a joblib file with --trust-pickle"

HARMLESS = (
    "builtins.object",
    "collections.OrderedDict",
    "collections.defaultdict",
    "lightgbm.basic.Booster",
    "lightgbm.sklearn.LGBMClassifier",
    "numpy.dtype",
    "sklearn._loss.link.LogitLink",
    "sklearn._loss.link.MultinomialLogit",
    "sklearn._loss.loss.HalfBinomialLoss",
    "sklearn._loss.loss.HalfMultinomialLoss",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.compose._column_transformer.make_column_selector",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.tree._tree.Tree",
    "sklearn.utils._bunch.Bunch",
    "xgboost.core.Booster",
    "xgboost.sklearn.XGBClassifier",
)
"""Types that skops does not trust but that are accepted here: their numbers are checked, or need no check."""

_COMPRESSED = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda", b"\x1f\x8b", b"BZh", b"\xfd7zXZ")

_ESTIMATORS = re.compile(rb"(sklearn|xgboost|lightgbm|imblearn|catboost)\.[a-zA-Z_.]+")


@dataclass(frozen=True, eq=False)
class FittedClassifier:
    """A fitted classifier with `predict_proba` and `classes_`, and the template of its reference models, in which the
    hyper-parameters that the file does not record (`unrecorded`) have the library's defaults. `notes` are sentences for
    the report, and `trusted` types that the user accepted by name."""

    estimator: Any
    template: Any
    file: str
    unrecorded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the columns that it was fitted with; None: not recorded, or only numbers."""
        names = tuple(map(str, getattr(self.estimator, "feature_names_in_", ())))
        numbered = all(name in (f"Column_{i}", f"f{i}") for i, name in enumerate(names))
        return None if numbered else names

    @property
    def width(self) -> int | None:
        """Number of columns of its input; None: not recorded."""
        found = getattr(self.estimator, "n_features_in_", None)
        return None if found is None else int(found)

    @property
    def classes(self) -> NDArray[Any]:
        """Its labels, in the order of its outputs."""
        return np.asarray(self.estimator.classes_)


def identify_estimator(raw: bytes) -> Format | None:
    """Format of a file of an estimator; None: another kind. A pickle counts if it names an estimator, or is compressed
    as by joblib; nothing is unpacked."""
    if raw[:4] == b"PK\x03\x04":
        with contextlib.suppress(zipfile.BadZipFile, OSError, ValueError), zipfile.ZipFile(io.BytesIO(raw)) as archive:
            return "skops" if "schema.json" in archive.namelist() else None
    if raw[:1] == b"{" and (b"learner" in raw[:64] or re.match(rb'\{\s*"version"', raw[:64])):
        return "xgboost"
    if raw.startswith(b"tree\n") and b"version=" in raw[:64]:
        return "lightgbm"
    packed = raw.startswith(_COMPRESSED) and not is_safetensors(raw)  # which may start with any bytes
    return "pickle" if packed or (raw[:1] == b"\x80" and _ESTIMATORS.search(raw)) else None


def load_estimator(
    path: str | Path, *, trust_pickle: bool = False, trust_types: Sequence[str] = ()
) -> FittedClassifier:
    """Load a fitted classifier from a file recognised by content: skops without unknown types, XGBoost's JSON and
    UBJSON, LightGBM's text, and, as loading one can run any code, joblib and pickle if trusted.

    Args:
        path: the file.
        trust_pickle: allow a joblib file or a pickle to run code on this machine.
        trust_types: types in a skops file to accept although skops does not trust them; loading one runs its code.

    Raises:
        InputError: the file is missing, damaged, or of another kind or version of its library; it holds no fitted
            classifier with probabilities; an untrusted pickle or untrusted types.
        MissingExtraError: the library is not installed.
    """
    raw, where = read_bytes(path, "model"), str(path)
    kind = identify_estimator(raw)
    if kind is None:
        raise InputError(f"expected a classifier of scikit-learn, XGBoost or LightGBM, got {where}; pass {FILES}")
    notes, trusted = list[str](), tuple(trust_types)
    if kind == "xgboost":
        found, template = _xgboost(raw, where, notes)
    elif kind == "lightgbm":
        found, template = _lightgbm(raw, where)
    else:
        with _check_versions(where, notes):
            held = _skops(raw, where, trusted) if kind == "skops" else _pickle(raw, where, trust_pickle)
        found, template = _unwrap_search(held, where, notes)
    _check_classifier(found, where)
    unrecorded = _UNRECORDED if kind == "xgboost" else ()
    return FittedClassifier(found, template, sha256(raw), unrecorded, tuple(notes), trusted)


def _library(name: str, where: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        message = f"{where} is a model of {name}, which cannot be imported ({one_line(error)}): pip install {name}"
        raise MissingExtraError(message, name=name) from None


def _skops(raw: bytes, where: str, trusted: tuple[str, ...] = ()) -> Any:
    skops = require("skops.io", "tabular")
    with as_input_error(f"the skops file {where} is damaged", "; save it again"):
        unknown = [str(name) for name in skops.get_untrusted_types(data=raw)]
    if refused := sorted({*unknown} - {*HARMLESS} - {*trusted}):
        accept = " ".join(f"--trust-type {name}" for name in refused)
        raise InputError(
            f"{where} holds types that are not known to be harmless: {', '.join(refused)}. Loading them can run their"
            f" code; if you know them and trust the author of the file, accept them by name: {accept}"
        )
    for name in {"xgboost", "lightgbm"} & {one.partition(".")[0] for one in unknown}:
        _library(name, where)
    what = f"the skops file {where} cannot be loaded with {_installed_version()}"
    remedy = "; save it again with this version"
    with as_input_error(what, remedy), current_directory_importable(), checked_boosters(where):
        estimator = skops.loads(raw, trusted=unknown)
    _check_trees(estimator, where)
    return estimator


def _pickle(raw: bytes, where: str, trusted: bool) -> Any:
    if not trusted:
        raise InputError(
            f"{where} is a pickle (joblib), and loading a pickle can run any code. Save the model with"
            ' skops.io.dump(model, "model.skops"), a booster with save_model; or pass --trust-pickle if you trust the'
            " author of the file"
        )
    what = f"the pickle {where} is damaged or cannot be loaded with {_installed_version()}"
    remedy = "; install the packages and versions with which it was made"
    with as_input_error(what, remedy), current_directory_importable():
        return import_module("joblib").load(io.BytesIO(raw))


def _installed_version() -> str:
    return f"scikit-learn {version('scikit-learn')}"


@contextlib.contextmanager
def _check_versions(where: str, notes: list[str]) -> Iterator[None]:
    from sklearn.exceptions import InconsistentVersionWarning

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    versions = {
        (one.message.original_sklearn_version, one.message.current_sklearn_version)
        for one in seen
        if isinstance(one.message, InconsistentVersionWarning)
    }
    for made, here in sorted(versions):
        if made.split(".")[:2] != here.split(".")[:2]:
            raise InputError(
                f"{where} was made with scikit-learn {made}, and the installed version {here} may read it wrongly: pip"
                f" install scikit-learn=={made}, or train and save it with {here}"
            )
        notes.append(f"The model was made with scikit-learn {made} and loaded with {here}.")


def _unwrap_search(found: Any, where: str, notes: list[str]) -> tuple[Any, Any]:
    if hasattr(found, "best_estimator_") and hasattr(found, "best_params_"):
        notes.append(
            f"The file holds a {type(found).__name__}: its best estimator is audited, and reference models use the same"
            " hyper-parameters without another search."
        )
        found = found.best_estimator_
    if not hasattr(found, "get_params") or not hasattr(found, "fit"):
        raise InputError(f"{where}: expected one fitted classifier or Pipeline, got a {type(found).__name__}")
    return found, _without_early_stopping(found, notes)


def _without_early_stopping(found: Any, notes: list[str]) -> Any:
    from sklearn.base import clone

    name, last = found.steps[-1] if hasattr(found, "steps") else ("", found)
    library, chosen, rounds = type(last).__module__.partition(".")[0], dict[str, Any](), 0
    if library == "xgboost" and last.get_params().get("early_stopping_rounds"):
        rounds, chosen = int(getattr(last, "best_iteration", -1)) + 1, {"early_stopping_rounds": None}
    elif library == "lightgbm":
        rounds = int(getattr(last, "best_iteration_", None) or 0)
    if not rounds:
        return found
    notes.append(
        f"The booster stopped early, after {rounds} rounds; reference models train as many without a validation set."
    )
    chosen = {f"{name}__{key}" if name else key: value for key, value in {**chosen, "n_estimators": rounds}.items()}
    return clone(found).set_params(**chosen)


_UNRECORDED = ("learning_rate", "reg_lambda", "subsample", "colsample_bytree", "min_child_weight")  # in XGBoost's files


def _xgboost(raw: bytes, where: str, notes: list[str]) -> tuple[Any, Any]:
    xgboost = _library("xgboost", where)
    text, content = read_xgboost(raw, where)
    objective, boosted = content["learner"]["objective"]["name"], content["learner"]["gradient_booster"]
    _check_objective("xgboost", objective, where)
    model = xgboost.XGBClassifier()
    model.load_model(text)
    params = {"booster": boosted["name"], "objective": objective}
    params["enable_categorical"] = bool(model.get_params().get("enable_categorical"))
    trees = boosted.get("gbtree", boosted)["model"]
    if "trees" in trees:
        rounds, depth = model.get_booster().num_boosted_rounds(), max(map(_depth, trees["trees"]), default=0)
        parallel = int(trees["gbtree_model_param"].get("num_parallel_tree", 1))
        params |= {"n_estimators": rounds, "max_depth": max(depth, 1), "num_parallel_tree": parallel}
        notes.append(
            f"XGBoost's file records only the number of rounds ({rounds}) and the depth of trees ({depth}) of its"
            " training."
        )
    return model, xgboost.XGBClassifier(**params)


def _depth(tree: Mapping[str, Any]) -> int:
    deep = [0] * len(tree["left_children"])
    for node, children in enumerate(zip(tree["left_children"], tree["right_children"], strict=True)):
        for child in children:
            if child > node:
                deep[child] = deep[node] + 1
    return max(deep)


_LIGHTGBM_NAMES = {
    "boosting": "boosting_type",
    "num_iterations": "n_estimators",
    "bin_construct_sample_cnt": "subsample_for_bin",
    "min_gain_to_split": "min_split_gain",
    "min_sum_hessian_in_leaf": "min_child_weight",
    "min_data_in_leaf": "min_child_samples",
    "bagging_fraction": "subsample",
    "bagging_freq": "subsample_freq",
    "feature_fraction": "colsample_bytree",
    "lambda_l1": "reg_alpha",
    "lambda_l2": "reg_lambda",
}

_MODEL_PARAMETERS = (
    *("learning_rate", "num_leaves", "max_depth", "max_bin", "min_data_in_bin", "feature_fraction_bynode"),
    *("extra_trees", "max_delta_step", "linear_lambda", "linear_tree", "drop_rate", "max_drop", "skip_drop"),
    *("top_rate", "other_rate", "data_sample_strategy", "path_smooth", "cat_l2", "cat_smooth", "max_cat_to_onehot"),
    *("max_cat_threshold", "min_data_per_group", "pos_bagging_fraction", "neg_bagging_fraction", "is_unbalance"),
    *("scale_pos_weight", "boost_from_average", "sigmoid", "use_missing", "zero_as_missing", "enable_bundle"),
    *("xgboost_dart_mode", "uniform_drop", "monotone_penalty", "bagging_by_query", "deterministic"),
)


def _lightgbm(raw: bytes, where: str) -> tuple[Any, Any]:
    lightgbm = _library("lightgbm", where)
    text = raw.decode("utf-8", "replace")
    objective = next(iter(re.findall(r"^objective=(\S+)", text, re.MULTILINE)), "none")
    _check_objective("lightgbm", objective, where)
    booster = lightgbm.Booster(model_str=read_lightgbm(text, where))
    rounds = booster.num_trees() // max(int(booster.num_model_per_iteration()), 1)
    recorded = {_LIGHTGBM_NAMES.get(name, name): v for name, v in (booster.params or {}).items()}
    used = {*_MODEL_PARAMETERS, *_LIGHTGBM_NAMES.values()}
    chosen = {name: value for name, value in recorded.items() if name in used}
    chosen |= {"n_estimators": rounds, "objective": objective}
    return classifier_of(booster), lightgbm.LGBMClassifier(**chosen)


def _check_objective(library: str, objective: str, where: str) -> None:
    if objective not in OBJECTIVES[library]:
        regressor = objective.startswith("reg") or objective in ("l1", "l2", "huber", "poisson")
        raise InputError(
            f"{where}: expected a classifier with class probabilities, got a {'regressor' if regressor else 'model'} of"
            f" {library} with the objective {objective:.40}; supported are {', '.join(OBJECTIVES[library])}"
        )


def _check_classifier(estimator: Any, where: str) -> None:
    from sklearn.base import is_classifier, is_regressor
    from sklearn.utils.validation import check_is_fitted

    name = type(estimator).__name__
    if is_regressor(estimator):
        raise InputError(f"{where}: expected a classifier, which gives class probabilities, got a regressor ({name})")
    try:
        check_is_fitted(estimator)
        seen = getattr(estimator, "classes_", None)
    except Exception as error:  # NotFittedError, or any other error of an incomplete estimator
        raise InputError(f"{where} holds an unfitted {name} ({one_line(error, 80)}); fit it, then save it") from None
    if not hasattr(estimator, "predict_proba"):
        why = "which is not a classifier; save the whole pipeline, classifier included"
        if is_classifier(estimator):
            why = "which has no predict_proba; use SVC(probability=True), or train it inside CalibratedClassifierCV"
        raise InputError(f"{where}: expected a classifier, got a {name}, {why}")
    if isinstance(seen, list):
        raise InputError(f"{where} holds a {name} of {len(seen)} labels at once; audit one model for each label")
    if seen is None or len(seen) < 2:
        raise InputError(f"{where}: expected a classifier of at least two classes, got a {name} of fewer")


def _check_trees(estimator: Any, where: str) -> None:
    """Refuse trees whose nodes point outside, or that split on columns beyond those of their forest: C code does not
    check."""
    fits = True
    for owner in _contents(estimator):
        if type(owner).__name__ in ("Tree", "TreePredictor"):
            fits &= _is_valid_tree(owner)
        width = getattr(owner, "n_features_in_", None)
        if isinstance(width, int | np.integer) and hasattr(owner, "__dict__"):
            wide = max(width, getattr(owner, "n_features_", width))
            for tree in _contents([vars(owner).get(name) for name in ("estimators_", "_predictors", "tree_")]):
                if type(tree).__name__ == "Tree" and type(owner).__module__.startswith(_FORESTS):
                    fits &= tree.n_features <= width
                elif type(tree).__name__ == "TreePredictor":
                    fits &= tree.nodes["feature_idx"][tree.nodes["is_leaf"] == 0].max(initial=0) < wide
    if not fits:
        raise InputError(
            f"{where} holds a tree whose nodes point outside the tree: it is damaged or malicious; save it again"
        )


_FORESTS = ("sklearn.ensemble._forest", "sklearn.ensemble._gb", "sklearn.tree")
"""Members of other ensembles may be pipelines, whose trees see more columns than the ensemble."""


def _is_valid_tree(tree: Any) -> bool:
    if type(tree).__name__ == "Tree":
        left, right, feature = tree.children_left, tree.children_right, tree.feature
        inner, count, features, sets = left != -1, tree.node_count, tree.n_features, np.empty(0)
        held = count
    else:
        nodes = tree.nodes
        left, right, feature = (nodes[name].astype(np.int64) for name in ("left", "right", "feature_idx"))
        inner, count, features = nodes["is_leaf"] == 0, len(nodes), np.iinfo(np.int32).max
        sets = nodes["bitset_idx"][inner & (nodes["is_categorical"] != 0)]
        held = min(len(tree.raw_left_cat_bitsets), len(tree.binned_left_cat_bitsets))
    at = np.flatnonzero(inner)
    children = np.stack([left[inner], right[inner]])
    same_length = len(left) == len(right) == len(feature) == count >= 1
    return bool(
        same_length
        and ((children > at) & (children < count)).all()
        and ((feature[inner] >= 0) & (feature[inner] < features)).all()
        and (sets < held).all()
    )


def _contents(value: Any) -> Iterator[Any]:
    waiting, seen = [value], set[int]()  # the list keeps objects alive, so that ids stay unique
    for one in waiting:  # which grows in the loop
        if one is None or isinstance(one, str | bytes | int | float | bool | np.generic | type) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple | set):
            waiting += one
        elif isinstance(one, np.ndarray):
            waiting += one.reshape(-1).tolist() if one.dtype == object else []
        elif hasattr(one, "__dict__") and not type(one).__module__.startswith("builtins"):
            waiting += vars(one).values()


@dataclass(frozen=True)
class SkopsSerializer:
    """Stores reference models as skops files, read as strictly as others except for `trusted` types."""

    trusted: tuple[str, ...] = ()

    @classmethod
    def of(cls, trusted: Sequence[str] = ()) -> SkopsSerializer | None:
        """A serializer; None: skops is not installed."""
        return cls(tuple(trusted)) if find_spec("skops") else None

    def write(self, estimator: Any) -> bytes:
        """An estimator as bytes for `read`; ValueError: `read` would refuse it."""
        from skops import io as skops

        raw: bytes = skops.dumps(estimator)
        if {*map(str, skops.get_untrusted_types(data=raw))} - {*HARMLESS} - {*self.trusted}:
            raise ValueError("it holds types that are not known to be harmless")
        return raw

    def read(self, raw: bytes) -> Any:
        """The estimator from bytes; InputError: they are not one."""
        return _skops(raw, "a stored reference model", self.trusted)


# --- boosters, read by a child process -------------------------------------------------------------------------------

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
        _check_json_tree(tree, features)
    names = model.get("cats") or {}
    if names.get("enc"):  # categories of data frames, since XGBoost 3.1
        edges = _boundaries(names["feature_segments"], len(names["sorted_idx"]), "names of categories")
        for one, start, end in zip(names["enc"], edges[:-1], edges[1:], strict=True):
            ends = one.get("offsets") or [*range(len(one["values"]) + 1)]
            _boundaries(ends, len(one["values"]), "names of categories")
            order = sorted(names["sorted_idx"][start:end])
            _require(order == [*range(len(ends) - 1)], "its categories do not match their number")


def _check_json_tree(tree: Mapping[str, Any], features: int) -> None:
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
