"""What leaves an Alibi explanation: the listed fields and nothing else, looked for with markers and with real rows."""

import gc
import importlib
import pickle
import warnings
from types import BuiltinFunctionType, FunctionType, ModuleType

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier

from safexplain import GaussianNoise, Hardening, RangeClip, TopKSet
from safexplain.errors import ConfigurationError, RefusedError
from safexplain.explain import anchor_hardening, harden
from safexplain.explain.alibi import META, PARAMS, ROWS, query_tensor
from safexplain.testing import find_markers, planted
from safexplain.testing.markers import MARKER_NUMBER as NUMBER
from safexplain.testing.markers import MARKER_TEXT as WORD

pytest.importorskip("alibi", reason='Alibi is not installed: pip install "safexplain[alibi]"')

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # spaCy's, about typer
    explainers = pytest.importorskip("alibi.explainers")
interfaces = pytest.importorskip("alibi.api.interfaces")

pytestmark = pytest.mark.filterwarnings("ignore::safexplain.errors.OpaqueModelWarning")

KEY = b"a noise key of thirty-two bytes."
PLAIN = Hardening(clip=RangeClip(-5.0, 5.0), noise=GaussianNoise(0.1, key=KEY))
X = np.random.default_rng(0).normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(int)
NAMES = list("abcd")


def probabilities(x):
    p = 1 / (1 + np.exp(-x[:, 0] - 0.5 * x[:, 1]))
    return np.stack([1 - p, p], 1)


def labels(x):
    return probabilities(x).argmax(1)


def stub(name, data, params=None):
    """An object whose class says that it was defined in alibi, and that returns an explanation of these fields."""

    def explain(self, X, y=None):
        meta = {"name": name, "type": [], "params": dict(params or {})}
        return interfaces.Explanation(meta=meta, data={"expected_value": [0.0], **data})

    return type(name, (), {"__module__": "alibi.stub", "explain": explain, "predictor": staticmethod(labels)})()


def text_explainer():
    spacy = pytest.importorskip("spacy")
    nlp = spacy.blank("en")
    nlp.vocab.lookups.add_table("lexeme_prob", {})
    return explainers.AnchorText(lambda texts: np.array([int("good" in t.split()) for t in texts]), "unknown", nlp)


FAST = {"coverage_samples": 500, "binary_cache_size": 100}
IMAGE = np.random.default_rng(1).random((16, 16, 3)).astype(np.float32)
FOREST = RandomForestClassifier(4, max_depth=3, random_state=0).fit(X, Y)


def shapley(name):
    """A fitted explainer, over the shap package."""
    pytest.importorskip("shap")
    if name == "TreeShap":
        return explainers.TreeShap(FOREST, feature_names=NAMES).fit()
    return explainers.KernelShap(FOREST.predict_proba, feature_names=NAMES, seed=0).fit(X[:10])


CASES = {
    "AnchorTabular": (lambda: explainers.AnchorTabular(labels, NAMES).fit(X), (X[0],), FAST),
    "AnchorImage": (
        lambda: explainers.AnchorImage(lambda x: (x.mean((1, 2, 3)) > 0.5).astype(int), (16, 16, 3)),
        (IMAGE,),
        FAST,
    ),
    "AnchorText": (text_explainer, ("a good book",), FAST),
    "KernelShap": (lambda: shapley("KernelShap"), (X[:20],), {"silent": True}),
    "TreeShap": (lambda: shapley("TreeShap"), (X[:20],), {}),
}
"""Native class -> how to make an explainer, and the arguments of `explain`."""


ANCHORS = [name for name in ROWS if name.startswith("Anchor")]

LISTED = {
    "AnchorTabular": {"anchor", "precision", "coverage"},
    "AnchorImage": {"anchor", "precision", "coverage", "segments"},
    "AnchorText": {"anchor", "precision", "coverage"},
    "KernelShap": {"shap_values", "feature_names", "categorical_names"},
    "TreeShap": {"shap_values", "feature_names", "categorical_names"},
}
"""What may be among the released fields: written down a second time, so that a change of the table is seen here."""
NEVER = {"seed", "kwargs", "images_background", "sample_weight", "weights", "punctuation", "stopwords"}


def hardening_for(name):
    return anchor_hardening(KEY) if name in ANCHORS else PLAIN


def secrets():
    """Values that hold the markers, in all ways in which alibi keeps data."""
    array = np.full((3, 4), NUMBER)
    return [NUMBER, WORD, array, [array], {WORD: array}, {"x": {"y": [WORD, NUMBER]}}, np.array([WORD, array], object)]


def with_secrets(explanation, kind):
    """The native explanation with markers everywhere but in the listed fields."""
    data, meta = dict(explanation.data), {**explanation.meta, "params": dict(explanation.meta.get("params", {}))}
    for name in set(data) - LISTED[kind]:
        data[name] = secrets()
    for i, value in enumerate(secrets()):
        data[f"unlisted_{i}"] = meta[f"unlisted_{i}"] = meta["params"][f"unlisted_{i}"] = value
    data["raw"] = {"examples": secrets(), "instance": np.full(4, NUMBER), WORD: secrets()}
    meta["params"].update(dict.fromkeys(sorted(PARAMS)[:3], np.full(3, NUMBER)))  # listed, but no plain value
    meta["params"].update(dict.fromkeys(NEVER, np.full(3, NUMBER)))
    result = interfaces.Explanation(meta=meta, data=data)
    result.secret = secrets()
    return result


def reachable(value):
    """Everything that can be reached from an object, but classes, modules and functions."""
    seen, waiting = {}, [value]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType | BuiltinFunctionType):
            continue
        seen[id(item)] = item
        waiting += gc.get_referents(item)
        if isinstance(item, np.ndarray):
            waiting += [item.base, *(item.ravel().tolist() if item.dtype == object else ())]
        waiting += list(getattr(item, "__dict__", {}).values())
    return list(seen.values())


@pytest.mark.parametrize("name", ANCHORS)
def test_markers_planted_in_every_other_field_are_not_found_in_what_is_released(name):
    make, args, options = CASES[name]
    native, found = make(), []
    with planted(type(native), "explain", lambda told, _: found.append(with_secrets(told, name)) or found[-1]):
        released = harden(native, hardening_for(name)).explain(*args, **options)
    assert all(find_markers(told) for told in (found[0].raw, found[0].meta, repr(found[0]), pickle.dumps(found[0])))
    check_released(released, name)
    assert not {id(x) for x in reachable(released)} & {id(x) for x in reachable(found[0]) if isinstance(x, np.ndarray)}


@pytest.mark.parametrize("name", [name for name in ROWS if name not in ANCHORS])
def test_markers_planted_in_an_explainer_of_shapley_values_are_not_found_either(name):
    make, args, options = CASES[name]
    native = make()
    planted_in = with_secrets(interfaces.Explanation(meta=native.meta, data={}), name).meta
    native.meta = {**planted_in, "params": {**native.meta["params"], **planted_in["params"]}}
    native.raw = native.expected_value = secrets()
    released = harden(native, PLAIN).explain(*args, **options)
    check_released(released, name)
    assert released.feature_names == NAMES
    assert released.feature_names is not native.feature_names
    assert released.categorical_names == {}


def check_released(released, name):
    """No marker, no field or parameter that is not listed, and no array that shows another one."""
    assert find_markers([released, repr(released), released.to_json(), pickle.dumps(released)]) == []
    assert set(released.data) <= LISTED[name] == set(ROWS[name])
    assert not NEVER & PARAMS
    assert set(released.meta) <= {*META, "params"}
    assert set(released.meta["params"]) <= PARAMS
    assert vars(released).keys() == {"meta", "data", *released.meta, *released.data}
    assert all(x.base is None for x in reachable(released) if isinstance(x, np.ndarray))


@pytest.mark.parametrize("name", ["KernelShap", "TreeShap"])
def test_shapley_values_are_hardened_and_the_same_when_asked_again_and_natively_without(name):
    make, args, options = CASES[name]
    native = make()
    quiet, loud = (np.stack(harden(native, h).explain(*args, **options).shap_values)
                   for h in (Hardening.none(), PLAIN))  # fmt: skip
    again = harden(make(), PLAIN).explain(*args, **options).shap_values
    assert np.array_equal(loud, np.stack(again))
    inner = np.moveaxis(native._explainer.shap_values(*args, **options), -1, 0)
    np.testing.assert_allclose(quiet, inner, atol=1e-9 if name == "TreeShap" else 1e-6)
    assert 0.05 < (loud - np.clip(quiet, -5, 5)).std() < 0.2
    assert ((loud - quiet) != 0).mean() > 0.5


@pytest.mark.parametrize("name", ["KernelShap", "TreeShap"])
def test_alibis_and_shaps_names_give_the_same_shapley_values(name):
    """One core: a set of Alibi's is the set of shap's, for one output and for two, a named class and the predicted."""
    core = importlib.import_module("safexplain.explain.shap")
    hardening = Hardening(clip=TopKSet(k=2, ordered=True))
    boosted = GradientBoostingClassifier(n_estimators=3, random_state=0).fit(X, Y)
    for model in (FOREST, boosted):
        if name == "TreeShap":
            theirs = harden(explainers.TreeShap(model).fit(), hardening)
            ours = core.HardenedTreeExplainer(model, hardening=hardening)
        else:
            predict = model.predict_proba if model is FOREST else model.decision_function
            theirs = harden(explainers.KernelShap(predict).fit(X[:10]), hardening)
            ours = core.HardenedKernelExplainer(predict, X[:10], hardening=hardening)
        for target in (None, 0):
            found, expected = theirs.explain(X[:6], target=target).shap_values, ours.shap_values(X[:6], target=target)
            assert [values.shape for values in found] == [(6, 4)] * (2 if expected.ndim == 3 else 1)
            assert np.array_equal(np.stack(found, axis=-1), expected.reshape(6, 4, -1))
            one = theirs.explain(X[1:2], target=target).shap_values
            assert np.array_equal(np.stack(one)[:, 0], np.stack(found)[:, 1])


def test_an_unexpected_kind_of_value_in_a_listed_field_is_refused():
    for anchor in ([object()], np.array([WORD, 1], object)):
        data = {"anchor": anchor, "precision": 0.5, "coverage": 0.5}
        with pytest.raises(RefusedError, match="expected numbers, strings"):
            harden(stub("AnchorTabular", data), anchor_hardening(KEY)).explain(X[0])


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("TreeShap", {"interactions": True}),
        ("TreeShap", {"y": Y[:5]}),
        ("KernelShap", {"summarise_result": True, "cat_vars_start_idx": [0], "cat_vars_enc_dim": [2]}),
    ],
)
def test_other_numbers_than_shapley_values_of_single_features_are_refused(name, option):
    with pytest.raises(RefusedError, match=f"{min(option)}.*only Shapley values of single features"):
        harden(shapley(name), PLAIN).explain(X[:5], **option)


def test_nothing_is_explained_before_fit_and_reset_predictor_is_seen():
    pytest.importorskip("shap")
    with pytest.raises(ConfigurationError, match="call fit"):
        harden(explainers.TreeShap(FOREST), PLAIN).explain(X[:2])
    hardened = harden(shapley("KernelShap"), Hardening(clip=TopKSet(k=1)))
    before = hardened.explain(X[:9]).shap_values[1]
    hardened.reset_predictor(lambda x: probabilities(-x[:, ::-1]))
    assert not np.array_equal(hardened.explain(X[:9]).shap_values[1], before)


def test_an_instance_of_labels_is_a_query_of_its_own():
    one, other = (query_tensor(np.array([label, 1], dtype=object)) for label in ("a", "b"))
    assert one.tolist() == query_tensor("['a', 1]").tolist() != other.tolist()
