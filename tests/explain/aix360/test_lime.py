"""Hardened LIME: an answer holds hardened weights, names and what the client sent, and nothing else."""

import copy
import os
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

from safexplain import GaussianNoise, Hardening, UnitNorm
from safexplain.errors import ConfigurationTypeError, InputError
from safexplain.explain import harden
from safexplain.explain.aix360 import HardenedLimeImage, HardenedLimeTabular, HardenedLimeText
from safexplain.testing import find_markers, planted
from safexplain.testing.markers import MARKER_NUMBER, MARKER_TEXT

os.environ.setdefault("TQDM_DISABLE", "1")
lime_image = pytest.importorskip("lime.lime_image")
lime_tabular = pytest.importorskip("lime.lime_tabular")
lime_text = pytest.importorskip("lime.lime_text")
native_lime = pytest.importorskip("aix360.algorithms.lime")

KEY = b"a key of thirty-two bytes, fixed"
RAW = Hardening.none()
NOISY = Hardening(noise=GaussianNoise(0.5, key=KEY), grid=2.0**-30)
TABLE = np.random.default_rng(0).normal(3.0, 2.0, (200, 6))
NAMES = ["age", "income", "height", "weight", "debt", "visits"]


def net(features, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, 3)).double()


TABLE_NET, LETTER_NET, IMAGE_NET = net(6), net(26), net(8 * 8 * 3)


def probabilities(model, rows):
    with torch.no_grad():
        return model(torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float64))).softmax(1).numpy()


def of_rows(rows):
    return probabilities(TABLE_NET, rows)


def of_texts(texts):
    return probabilities(LETTER_NET, np.array([[text.count(chr(97 + i)) for i in range(26)] for text in texts]) / 3)


def of_images(images):
    return probabilities(IMAGE_NET, np.asarray(images).reshape(len(images), -1))


def blocks(image):
    """Segments of 2 x 2 pixels."""
    return (np.arange(8)[:, None] // 2) * 4 + np.arange(8)[None] // 2


@dataclass(frozen=True)
class Case:
    """One kind of LIME, what it is made of and what it is asked."""

    hardened: type
    native: type
    lime: type
    made_of: tuple
    instance: Any
    predict: Any
    options: dict

    def ask(self, explainer, **options):
        return explainer.explain_instance(self.instance, self.predict, **{**self.options, **options})

    def make(self, hardening=NOISY, **options):
        return self.hardened(*self.made_of, hardening=hardening, **options)


CASES = {
    "tabular": Case(
        HardenedLimeTabular,
        native_lime.LimeTabularExplainer,
        lime_tabular.LimeTabularExplainer,
        (TABLE, "classification", None, NAMES),
        TABLE[3],
        of_rows,
        {"num_samples": 60, "labels": (1,)},
    ),
    "text": Case(
        HardenedLimeText,
        native_lime.LimeTextExplainer,
        lime_text.LimeTextExplainer,
        (),
        "a quick fox and a lazy dog and another fox",
        of_texts,
        {"num_samples": 60, "labels": (1,)},
    ),
    "image": Case(
        HardenedLimeImage,
        native_lime.LimeImageExplainer,
        lime_image.LimeImageExplainer,
        (),
        np.random.default_rng(1).random((8, 8, 3)),
        of_images,
        {"num_samples": 60, "segmentation_fn": blocks, "top_labels": None},
    ),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def weights(answer, label=1):
    return dict(answer.local_exp[label])


def noise_of(case, label=1, **options):
    """What is added to the weight of each feature."""
    plain, noisy = (case.ask(case.make(h, random_state=0), **options) for h in (RAW, NOISY))
    return {f: round(w - weights(plain, label)[f], 6) for f, w in weights(noisy, label).items()}


@cases
def test_without_hardening_the_weights_are_the_native_ones(case):
    expected = case.ask(case.native(*case.made_of, random_state=7), labels=(0, 2))
    answer = case.ask(case.make(RAW, random_state=7), labels=(0, 2))
    assert answer.local_exp == expected.local_exp
    assert isinstance(answer, type(expected))


def test_the_weights_of_each_label_are_hardened_together():
    case = CASES["tabular"]
    plain = case.ask(case.make(RAW, random_state=0), labels=(0, 1))
    answer = case.ask(case.make(Hardening(clip=UnitNorm()), random_state=0), labels=(0, 1))
    for label in (0, 1):
        norm = np.linalg.norm(list(weights(plain, label).values()))
        assert weights(answer, label) == pytest.approx(
            {f: w / norm for f, w in weights(plain, label).items()}, rel=1e-4, abs=1e-6
        )
        assert norm != pytest.approx(1)
        sizes = [abs(w) for _, w in answer.local_exp[label]]
        assert sizes == sorted(sizes, reverse=True)
    assert answer.as_list() == answer.as_list(1) != answer.as_list(0)


def test_a_random_state_of_the_caller_is_where_every_call_starts():
    case = CASES["tabular"]
    state = np.random.RandomState(5)
    explainer = case.make(RAW, random_state=state)
    state.random(100)
    first = case.ask(explainer)
    assert first.local_exp == case.ask(explainer).local_exp
    assert first.local_exp == case.ask(case.native(*case.made_of, random_state=np.random.RandomState(5))).local_exp
    assert first.local_exp != case.ask(case.make(RAW, random_state=6)).local_exp


def test_options_that_only_estimate_share_the_noise():
    case = CASES["tabular"]
    assert noise_of(case) == noise_of(case, num_samples=61) == noise_of(case, labels=(0, 1), model_regressor=Ridge(9))


@cases
def test_another_question_meets_other_noise(case):
    asked = noise_of(case, labels=(0, 1))
    changed = {**case.__dict__, "instance": case.instance + ("!" if isinstance(case.instance, str) else 1e-3)}
    for other in (noise_of(case, label=0, labels=(0, 1)), noise_of(Case(**changed)), noise_of(case, num_features=3)):
        assert not {*asked.values()} & {*other.values()}


def test_another_model_meets_other_noise():
    case = CASES["text"]
    before = noise_of(case)
    module = LETTER_NET
    kept = copy.deepcopy(module.state_dict())
    try:
        with torch.no_grad():
            module[0].weight[0, 0] += 1e-9
        assert not {*before.values()} & {*noise_of(case).values()}
    finally:
        module.load_state_dict(kept)
    assert noise_of(case) == before


def test_labels_come_in_increasing_order_and_not_in_that_of_the_prediction():
    case = CASES["image"]
    native = case.ask(case.native(*case.made_of, random_state=0), top_labels=3)
    answer = case.ask(case.make(random_state=0), top_labels=3)
    assert list(answer.local_exp) == [0, 1, 2]
    assert native.top_labels != [0, 1, 2] or list(native.local_exp) != [0, 1, 2]
    assert getattr(answer, "top_labels", None) is None


ALLOWED = {"local_exp", "class_names", "mode", "domain_mapper", "image", "segments", "dummy_label", "random_state"}
ALLOWED |= {"exp_feature_names", "feature_names", "feature_values", "feature_indexes", "indexed_string"}


def plant(value, explainer=None):
    """Markers in every attribute that is not on the list, and in new ones, of an answer and of what it holds."""
    for name in {*vars(value), "an_extra_attribute"} - ALLOWED:
        setattr(value, name, {MARKER_NUMBER: [MARKER_TEXT, np.array([MARKER_NUMBER])]})
    for name in ("domain_mapper", "indexed_string"):
        if hasattr(value, name):
            plant(getattr(value, name))
    value.intercept = dict.fromkeys(getattr(value, "local_exp", ()), MARKER_NUMBER)
    return value


@cases
def test_nothing_that_is_not_listed_leaves(case):
    explainer = case.lime(*case.made_of, random_state=0)
    with planted(case.lime, "explain_instance", plant) as planting:
        native, answer = case.ask(explainer), case.ask(case.hardened.around(explainer, RAW))
    assert planting.calls == 2
    assert find_markers(native)
    assert find_markers(pickle.dumps(native))
    assert weights(answer)
    assert find_markers([answer, pickle.dumps(answer)]) == []


def test_a_native_explainer_is_left_as_it_is_and_an_earlier_answer_stays_in_it():
    case = CASES["text"]
    native = case.native(*case.made_of, random_state=0)
    earlier = case.ask(native)
    before = native.explainer.random_state.get_state()[1].copy()
    wrapped = harden(native, NOISY)
    case.ask(wrapped)
    assert native.explanation is earlier
    assert np.array_equal(native.explainer.random_state.get_state()[1], before)
    earlier.secret = MARKER_TEXT
    assert find_markers(wrapped) == []
    assert find_markers(native)


def test_the_wrapped_explainer_may_be_that_of_aix360_or_of_lime():
    case = CASES["text"]
    expected = case.ask(case.make(random_state=0)).local_exp
    for kind in (case.native, case.lime):
        wrapped = harden(kind(*case.made_of, random_state=0), NOISY)
        assert type(wrapped) is case.hardened
        assert wrapped._native is case.lime
        assert case.ask(wrapped).local_exp == expected


def test_verbose_explainers_print_nothing_of_the_model(capsys):
    case = CASES["image"]
    case.ask(case.make(verbose=True))
    assert capsys.readouterr().out == ""
    case.ask(case.native(*case.made_of, verbose=True))
    assert "Intercept" in capsys.readouterr().out


def test_names_of_features_carry_no_training_quartiles_unless_asked_for():
    case = CASES["tabular"]
    native = [name for name, _ in case.ask(case.native(*case.made_of, random_state=0)).as_list()]
    plain = [name for name, _ in case.ask(case.make(random_state=0)).as_list()]
    asked = [name for name, _ in case.ask(case.make(random_state=0, bins=True)).as_list()]
    assert set(plain) == set(NAMES)
    assert set(asked) == set(native)
    assert all(any(c.isdigit() for c in name) for name in native)
    quartiles = {f"{q:.2f}" for q in np.percentile(TABLE, [25, 50, 75], axis=0).ravel()}
    assert any(q in name for q in quartiles for name in native)
    wrapped = harden(case.native(*case.made_of, random_state=0), NOISY, bins=True)
    assert {name for name, _ in case.ask(wrapped).as_list()} == set(native)


def test_a_regression_has_one_answer_and_its_negative():
    def prices(rows):
        return of_rows(rows)[:, 0]

    made_of, options = (TABLE, "regression", None, NAMES), {"num_samples": 60}
    native = native_lime.LimeTabularExplainer(*made_of, random_state=0).explain_instance(TABLE[3], prices, **options)
    plain = HardenedLimeTabular(*made_of, random_state=0, hardening=RAW).explain_instance(TABLE[3], prices, **options)
    answer = HardenedLimeTabular(*made_of, random_state=0, hardening=NOISY)
    answer = answer.explain_instance(TABLE[3], prices, **options)
    assert plain.local_exp == native.local_exp
    assert answer.local_exp[0] == [(feature, -weight) for feature, weight in answer.local_exp[1]]
    assert answer.as_list() != native.as_list()
    assert np.isfinite([native.predicted_value, native.min_value, native.max_value]).all()
    assert np.isnan([answer.predicted_value, answer.min_value, answer.max_value]).all()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_page_shows_hardened_weights_and_no_probabilities():
    case = CASES["tabular"]
    native, answer = case.ask(case.native(*case.made_of, random_state=0)), case.ask(case.make(random_state=0))
    assert len(answer.as_pyplot_figure().axes[0].patches) == len(answer.as_list())
    page = answer.as_html()
    assert str(answer.as_list()[0][1]) in page
    for p in native.predict_proba:
        assert str(p) in native.as_html()
        assert str(p) not in page


def test_what_cannot_be_answered_is_said():
    with pytest.raises(InputError, match="expected a text"):
        HardenedLimeText(hardening=NOISY).explain_instance(["words"], of_texts)
    with pytest.raises(TypeError, match="missing a required argument"):
        HardenedLimeText(hardening=NOISY).explain_instance("words")
    with pytest.raises(ConfigurationTypeError, match="hardening must be"):
        HardenedLimeImage(hardening="strong")
    with pytest.raises(TypeError, match="unexpected keyword argument 'bins'"):
        harden(lime_text.LimeTextExplainer(), NOISY, bins=True)


def test_one_question_has_one_noise_however_it_is_written():
    rows = np.random.default_rng(0).normal(size=(40, 4))

    def predict(x):
        first = 1 / (1 + np.exp(-x @ np.array([1.0, -2.0, 0.5, 0.0])))
        return np.stack([first / 2, first / 2, 1 - first], 1)

    def weights(explainer, row, label):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a function in which no model is found
            answer = explainer.explain_instance(row, predict, labels=(label,), num_samples=50)
        return dict(answer.local_exp[label])

    hardenings = Hardening(noise=GaussianNoise(0.05, key=KEY)), Hardening.none()
    explainer, plain = (HardenedLimeTabular(rows, hardening=h, random_state=0) for h in hardenings)
    assert weights(plain, rows[0], 2) == weights(plain, rows[0], -1)  # the same class, natively too
    assert weights(explainer, rows[0], 2) == weights(explainer, rows[0], -1)
    assert weights(explainer, rows[0] * (1 + 1e-12), 2) == weights(explainer, rows[0], 2)
    assert weights(explainer, rows[0], 2) != weights(explainer, rows[0], 1)
