"""Reasons are for the decision that was made: in every library, through the drop-in, the service and the audit."""

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient, IntegratedGradients, NoiseTunnel
from explain_nets import quiet
from over_http import released_over_http
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from safexplain import Hardening, TopKSet
from safexplain.errors import ConfigurationError, InputError, PredictedClassWarning
from safexplain.explain import harden, hardened
from safexplain.explain.catalog import CATALOG
from safexplain.explain.hardened import HARDENED, explained_classes, oriented
from safexplain.explain.served import TABLE_METHODS, load_release
from safexplain.outputs import EstimatorModule

pytestmark = [quiet, pytest.mark.filterwarnings("ignore:LightGBM binary classifier with TreeExplainer")]

HARDENING = Hardening(clip=TopKSet(k=2, ordered=True))
BACKGROUND = np.random.default_rng(0).normal(size=(40, 4))
BACKGROUND[:, 2:] -= BACKGROUND[:, 2:].mean(0)


@cache
def model(name: str) -> Any:
    """A classifier of two classes whose reasons are known."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 4)).astype(np.float32)
    if name == "linear":
        fitted = LogisticRegression().fit(X, X[:, 0] > 0)
        fitted.coef_, fitted.intercept_ = np.array([[3.0, -2.0, 1.0, 0.0]]), np.zeros(1)
        fitted.classes_ = np.array([0, 1])
        return fitted
    if name == "a tree of one split":
        return DecisionTreeClassifier(max_depth=1).fit(X, (X[:, 0] > 0).astype(int))
    X[:, 2:] = 0  # which are never split on
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    if name == "lightgbm":
        return pytest.importorskip("lightgbm").LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1).fit(X, y)
    kinds = {"boosting": GradientBoostingClassifier, "histograms": HistGradientBoostingClassifier}
    return kinds.get(name, RandomForestClassifier)(random_state=0).fit(X, y)


BOTH = {(2.0, 1.0, 0.0, 0.0): [{0, 1}], (-2.0, -1.0, 0.0, 0.0): [{0, 1}], (2.0, -0.7, 0.0, 0.0): [{0}]}
REASONS: dict[str, dict[tuple[float, ...], list[Any]]] = {
    "linear": {(1.0, 1.0, 1.0, 1.0): [0, 2], (-1.0, 1.0, -1.0, 1.0): [0, 1]},
    "a tree of one split": {(1.0, 1.0, 1.0, 1.0): [0], (-1.0, 1.0, -1.0, 1.0): [0]},
    "boosting": BOTH, "histograms": BOTH, "forest": BOTH, "lightgbm": BOTH,
}  # fmt: skip
"""Model -> row -> its reasons, the strongest first; a set where the order is not known."""

TABLES = [
    ("LinearExplainer", "linear"),
    ("TreeExplainer", "a tree of one split"),
    ("TreeExplainer", "boosting"),
    ("TreeExplainer", "lightgbm"),
    ("TreeShap", "histograms"),
    ("KernelExplainer", "linear"),
    ("KernelExplainer", "forest"),
    ("AlibiKernelShap", "linear"),
    ("LimeTabular", "linear"),
]
"""Every explainer of rows that gives numbers, and every kind of model."""


def is_right(maps: np.ndarray, name: str, of: str) -> bool:
    """Whether (n, d) ordered sets name the known reasons of the rows."""
    for numbers, expected in zip(maps, REASONS[of].values(), strict=True):
        order = [int(i) for i in np.argsort(-numbers, kind="stable") if numbers[i] > 0]
        if name == "LimeTabular":  # of a line through samples, the least may be an error of the fit
            order, expected = order[:1], expected[:1]
        right = set(order) == expected[0] if isinstance(expected[0], set) else order == expected
        if not right:
            return False
    return True


def rows_of(of: str) -> np.ndarray:
    return np.array(list(REASONS[of]), dtype=np.float32)


def dropped_in(name: str, of: str) -> np.ndarray:
    """(n, d) what somebody gets who asks as the library's documentation does, about the predicted class."""
    fitted, x = model(of), rows_of(of)
    predicted = fitted.predict(x).astype(int)
    kind = TABLE_METHODS[name]
    if name == "LimeTabular":
        explainer = kind(BACKGROUND, feature_selection="none", hardening=HARDENING)
        found = [dict(explainer.explain_instance(row, fitted.predict_proba).local_exp[c])
                 for row, c in zip(x, predicted, strict=True)]  # fmt: skip
        return np.array([[weights.get(i, 0.0) for i in range(4)] for weights in found])
    if name in ("TreeExplainer", "LinearExplainer", "KernelExplainer"):
        made = {"TreeExplainer": (fitted,), "LinearExplainer": (fitted, BACKGROUND),
                "KernelExplainer": (fitted.predict_proba, BACKGROUND)}[name]  # fmt: skip
        values = kind(*made, hardening=HARDENING).shap_values(x)
        return values if values.ndim == 2 else values[np.arange(len(x)), :, predicted]
    explainer = kind(fitted if name == "TreeShap" else fitted.predict_proba, hardening=HARDENING)
    explainer.fit(*(() if name == "TreeShap" else (BACKGROUND,)))
    values = explainer.explain(x).data["shap_values"]
    return values[0] if len(values) == 1 else np.stack(values)[predicted, np.arange(len(x))]


def need(name: str) -> None:
    """Skip a method whose library is not installed."""
    library = CATALOG[name].library
    if library == "lime":
        pytest.importorskip("lime")
    if library in ("alibi", "shap"):
        pytest.importorskip("shap")
    if library == "alibi":
        pytest.importorskip("alibi")


@pytest.mark.parametrize(("name", "of"), TABLES)
def test_drop_in_service_and_audit_name_the_right_reasons_for_both_classes(name, of):
    need(name)
    fitted, x = model(of), torch.from_numpy(rows_of(of))
    predicted = torch.from_numpy(fitted.predict(x.numpy()).astype(int))
    assert set(predicted.tolist()) == {0, 1}
    public = BACKGROUND if TABLE_METHODS[name]._needs_background else None
    audited = TABLE_METHODS[name].catalogued(public)(EstimatorModule(fitted), hardening=HARDENING)
    asked = audited.attribute(x, target=predicted).numpy()
    assert is_right(asked, name, of)
    options = {"uncertified": True, "explainer": name, "hardening": HARDENING, "public": public, "input_shape": (4,)}
    served = released_over_http(fitted, None, x, **options, input_range=(-9.0, 9.0))
    assert served.tobytes() == asked.tobytes(), "byte for byte what the audit asked"
    assert is_right(dropped_in(name, of), name, of)


def test_reasons_of_tables_come_in_their_order_by_default():
    pytest.importorskip("shap")
    fitted, x = model("linear"), torch.from_numpy(rows_of("linear"))
    ordered = Hardening.recommended(ordered=True)
    values = TABLE_METHODS["LinearExplainer"](fitted, BACKGROUND).shap_values(x.numpy())
    assert values.tolist() == [[4, 0, 3, 0], [4, 3, 2, 0]]
    captums = HARDENED["FeatureAblation"](EstimatorModule(fitted))
    assert (captums.hardening, HARDENED["IG"](nn.Linear(4, 2)).hardening) == (ordered, Hardening.recommended())
    for name, public in (("LinearExplainer", BACKGROUND), ("FeatureAblation", None)):
        released = load_release(fitted, None, uncertified=True, method=name, public=public, shape=(4,))
        assert released.hardening == ordered


def boosted() -> Any:
    pytest.importorskip("shap")
    from safexplain.explain.shap import HardenedTreeExplainer

    return HardenedTreeExplainer(model("boosting"), hardening=HARDENING)


def test_a_named_class_goes_before_the_predicted_one():
    x = rows_of("boosting")
    for_one, for_none = (boosted().shap_values(x, target=c) for c in (1, 0))
    assert (for_one[0] > 0).any()
    assert not (for_one[0] > 0).all()
    assert not for_none[0].any(), "nothing speaks for class 0 in a row that all speak for class 1"
    assert np.array_equal(boosted().shap_values(x), boosted().shap_values(x, target=[1, 0, 1]))
    for wrong in (2, [0, 1], "one"):
        with pytest.raises(ConfigurationError, match="target"):
            boosted().shap_values(x, target=wrong)
    with pytest.raises(ConfigurationError, match="target=0"):
        boosted().shap_values(x, direction="up")


def test_the_base_value_counts_in_which_class_is_predicted():
    """Of trees that nearly always say class 1, where the values alone would often have another sign."""
    pytest.importorskip("shap")
    from safexplain.explain.shap import HardenedTreeExplainer

    rng = np.random.default_rng(4)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    fitted = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(
        X, (rng.random(300) < 0.7 + 0.2 * (X[:, 0] > 0)).astype(int)
    )
    explainer, predicted = HardenedTreeExplainer(fitted, hardening=HARDENING), fitted.predict(X)
    assert np.array_equal(explainer.shap_values(X), explainer.shap_values(X, target=predicted))
    native = HardenedTreeExplainer(fitted, hardening=Hardening.none()).shap_values(X)
    assert ((native.sum(1) > 0) != predicted.astype(bool)).mean() > 0.1


def test_it_is_said_once_that_the_predicted_class_decides(monkeypatch):
    monkeypatch.setattr(hardened, "_warned", set())
    with pytest.warns(PredictedClassWarning, match="explain each row.s predicted class"):
        boosted().shap_values(rows_of("boosting"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        boosted().shap_values(rows_of("boosting"))


def test_of_a_number_the_direction_says_why_it_is_high_or_low():
    pytest.importorskip("shap")
    from safexplain.explain.shap import HardenedKernelExplainer, HardenedLinearExplainer, HardenedTreeExplainer

    X = np.random.default_rng(2).normal(size=(300, 4))
    line = LinearRegression().fit(X, X @ [3.0, -2.0, 1.0, 0.0])
    trees = GradientBoostingRegressor(random_state=0).fit(X, X @ [3.0, -2.0, 1.0, 0.0])
    x = np.array([[1.0, 1.0, 1.0, 1.0], [-1.0, 1.0, -1.0, 1.0]])
    for explainer in (HardenedLinearExplainer(line, X, hardening=HARDENING),
                      HardenedTreeExplainer(trees, hardening=HARDENING),
                      HardenedKernelExplainer(line.predict, X[:50], hardening=HARDENING)):  # fmt: skip
        up, down = explainer.shap_values(x), explainer.shap_values(x, direction="down")
        assert int(up[0].argmax()) == 0
        assert [int(i) for i in np.argmax(down, axis=1)] == [1, 0]
        assert not ((up > 0) & (down > 0)).any()
        with pytest.raises(ConfigurationError, match="no classes"):
            explainer.shap_values(x, target=1)


@pytest.mark.parametrize(
    "made", [lambda p: p[:, 1], lambda p: np.log(p[:, 1] / p[:, 0])], ids=["probability", "number"]
)
def test_a_function_of_one_output_is_about_classes_where_it_gives_probabilities(made):
    pytest.importorskip("shap")
    from safexplain.explain.shap import HardenedKernelExplainer

    fitted, x = model("linear"), rows_of("linear")
    maps = HardenedKernelExplainer(
        lambda rows: made(fitted.predict_proba(rows)), BACKGROUND, hardening=HARDENING
    ).shap_values(x)
    assert is_right(maps, "KernelExplainer", "linear") == (made(np.array([[0.2, 0.8]]))[0] == 0.8)


def test_of_two_classes_with_one_output_those_of_class_0_are_the_negatives():
    values = np.arange(6.0).reshape(2, 3)
    assert oriented(values, [0, 1]).tolist() == [[0, -1, -2], [3, 4, 5]]
    assert torch.equal(oriented(torch.from_numpy(values), [0, 1]), torch.tensor([[0.0, -1, -2], [3, 4, 5]]).double())
    assert explained_classes([0.2, -0.2], 0.0).tolist() == [1, 0]
    assert explained_classes([0.2, 0.8], 0.5).tolist() == [0, 1]
    assert explained_classes([0.5, 0.5], 0.5).tolist() == [0, 0]  # a tie is no more than the threshold
    assert (
        explained_classes([5.0, 6.0], None).tolist()
        == explained_classes([5.0, 6.0], None, direction="up").tolist()
        == [1, 1]
    )
    assert explained_classes([5.0], None, direction="down").tolist() == [0]
    assert explained_classes([0.2, 0.8], 0.5, target=1).tolist() == [1, 1]
    assert explained_classes([0.2, 0.8], 0.5, target=torch.tensor([1, 0])).tolist() == [1, 0]


def test_values_compare_with_those_who_just_passed():
    pytest.importorskip("shap")
    from safexplain.explain import near_cutoff
    from safexplain.explain.shap import HardenedKernelExplainer, HardenedTreeExplainer

    rows = np.random.default_rng(3).normal(size=(500, 4))
    fitted = model("boosting")
    scores = fitted.predict_proba(rows)[:, 1]
    background = near_cutoff(rows, scores, 0.5, n=20)
    assert len(background) == 20
    passed = np.sort(scores[scores >= 0.5])[:20]
    assert np.allclose(np.sort(fitted.predict_proba(background)[:, 1]), passed)
    x = rows_of("boosting")
    given = HardenedTreeExplainer(fitted, background, feature_perturbation="interventional", hardening=HARDENING)
    same = HardenedTreeExplainer(fitted, background=background, hardening=HARDENING)
    assert np.array_equal(same.shap_values(x), given.shap_values(x))
    asked = HardenedTreeExplainer.catalogued(background=background)
    assert asked.made_with["feature_perturbation"] == "interventional"
    assert asked.made_with["public"]["rows"] == 20
    kernel = HardenedKernelExplainer(fitted.predict_proba, background=background, hardening=HARDENING)
    assert kernel.shap_values(x).shape == (3, 4, 2)
    with pytest.raises(InputError, match="score"):
        near_cutoff(rows, scores, 2.0)


def line(*, end: tuple[nn.Module, ...] = (), flat: bool = False) -> nn.Module:
    layer = nn.Linear(4, 1)
    layer.weight.data, layer.bias.data = torch.tensor([[3.0, -2.0, 1.0, 0.0]]), torch.zeros(1)
    return nn.Sequential(layer, *end, *([nn.Flatten(0)] if flat else [])).eval()


@pytest.mark.parametrize(
    ("name", "net"),
    [
        ("IG", line()),
        ("InputXGradient", line(flat=True)),
        ("DeepLift", line(end=(nn.Sigmoid(),))),
        ("FeatureAblation", line(end=(nn.Sigmoid(),))),
        ("SmoothGrad", line(flat=True)),
    ],
    ids=["IG", "InputXGradient", "DeepLift", "FeatureAblation", "SmoothGrad"],
)
def test_a_map_of_one_output_speaks_for_the_predicted_class(name, net):
    x = torch.from_numpy(rows_of("linear"))
    predicted = (net(x).view(-1) > (0.5 if len(net) > 1 and isinstance(net[1], nn.Sigmoid) else 0)).long()
    assert predicted.tolist() == [1, 0]
    maps = HARDENED[name](net, hardening=HARDENING).attribute(x)
    native = HARDENED[name](net, hardening=Hardening.none()).attribute(x)
    signs = 2 * predicted[:, None] - 1
    torch.manual_seed(0)
    if name != "SmoothGrad":
        assert torch.equal(maps, HARDENING(native.detach() * signs))
        column = 0 if net(x).dim() == 2 else None
        assert torch.equal(maps, HARDENED[name](net, hardening=HARDENING).attribute(x, target=column))
        assert is_right(maps.numpy(), name, "linear")
        assert torch.equal(maps[1:], HARDENED[name](net, hardening=HARDENING).attribute(x[1:]))
    else:  # gradients of a line are its weights, whatever the noise
        assert maps.tolist() == [[2, 0, 1, 0], [0, 2, 0, 0]]


def test_of_one_output_that_is_a_number_the_direction_is_said():
    x = torch.from_numpy(rows_of("linear"))
    up = HARDENED["IG"](line(), hardening=HARDENING, direction="up").attribute(x)
    down = HARDENED["IG"](line(), hardening=HARDENING, direction="down").attribute(x)
    assert up.tolist() == [[2, 0, 1, 0], [0, 0, 0, 0]]
    assert down.tolist() == [[0, 2, 0, 0], [2, 1, 0, 0]]
    again = harden(IntegratedGradients(line()), HARDENING, direction="down").attribute(x)
    assert torch.equal(again, down)


def test_magnitudes_have_no_side():
    x = torch.from_numpy(rows_of("linear"))
    maps = HARDENED["Saliency"](line(), hardening=HARDENING).attribute(x)
    assert (maps[0] == maps[1]).all()
    squares = harden(NoiseTunnel(InputXGradient(line())), HARDENING)
    maps = squares.attribute(x, nt_type="smoothgrad_sq", nt_samples=2, stdevs=0.0)
    assert maps.tolist() == [[2, 1, 0, 0]] * 2  # of 9, 4, 1 and 0
