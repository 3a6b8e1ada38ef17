"""Hardened LIME: an answer holds hardened weights, names and what the client sent, and nothing else."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from safexplain import GaussianNoise, Hardening, TopKSet, UnitNorm
from safexplain.errors import ConfigurationTypeError, InputError, OpaqueModelWarning
from safexplain.explain.aix360 import HardenedLimeImage, HardenedLimeTabular, HardenedLimeText, harden_aix360
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


def kernel(distances, kernel_width):
    return np.exp(-(distances**2) / kernel_width**2)


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


def test_asking_again_gives_the_same_answer():
    case = CASES["image"]
    explainer = case.make()
    first = case.ask(explainer)
    assert case.ask(explainer).local_exp == first.local_exp
    assert case.ask(case.make()).local_exp == first.local_exp
    plain = case.make(RAW)
    assert case.ask(plain).local_exp == case.ask(plain).local_exp
    native = case.native(*case.made_of)
    assert case.ask(native).local_exp != case.ask(native).local_exp


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


def test_withheld_numbers_are_nan():
    case = CASES["tabular"]
    native, answer = case.ask(case.native(*case.made_of, random_state=0)), case.ask(case.make(random_state=0))
    for name in {"score", "local_pred", "predict_proba"} & vars(native).keys():
        assert np.isfinite(getattr(native, name)).all()
        assert np.isnan(getattr(answer, name)).all()
    assert np.isfinite(native.intercept[1])
    assert np.isnan(answer.intercept[1])


def test_a_native_explainer_is_left_as_it_is_and_an_earlier_answer_stays_in_it():
    case = CASES["text"]
    native = case.native(*case.made_of, random_state=0)
    earlier = case.ask(native)
    before = native.explainer.random_state.get_state()[1].copy()
    wrapped = harden_aix360(native, NOISY)
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
        wrapped = harden_aix360(kind(*case.made_of, random_state=0), NOISY)
        assert type(wrapped) is case.hardened
        assert wrapped._native is case.lime
        assert case.ask(wrapped).local_exp == expected


def test_verbose_explainers_print_nothing_of_the_model(capsys):
    case = CASES["image"]
    case.ask(case.make(verbose=True))
    assert capsys.readouterr().out == ""
    case.ask(case.native(*case.made_of, verbose=True))
    assert "Intercept" in capsys.readouterr().out


def test_an_explainer_pickles_where_the_native_one_does():
    case = CASES["tabular"]
    options = {"kernel": kernel, "random_state": 0}
    options |= {"discretize_continuous": False}
    pickle.dumps(case.native(*case.made_of, **options))
    explainer = case.make(**options)
    assert case.ask(pickle.loads(pickle.dumps(explainer))).local_exp == case.ask(explainer).local_exp
    seeded_by_key = case.make(**{**options, "random_state": None})
    assert case.ask(pickle.loads(pickle.dumps(seeded_by_key))).local_exp == case.ask(seeded_by_key).local_exp


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
    wrapped = harden_aix360(case.native(*case.made_of, random_state=0), NOISY, bins=True)
    assert {name for name, _ in case.ask(wrapped).as_list()} == set(native)


def test_training_means_cannot_be_read_from_the_scaled_row():
    case = CASES["tabular"]
    native = case.ask(case.native(*case.made_of, discretize_continuous=False, random_state=0))
    scaled = native.domain_mapper.scaled_row
    np.testing.assert_allclose(case.instance - scaled * TABLE.std(0), TABLE.mean(0))
    answer = case.ask(case.make(discretize_continuous=False, random_state=0))
    assert np.isnan(answer.domain_mapper.scaled_row).all()


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


def test_categories_and_sparse_rows_are_named_as_natively():
    table = np.column_stack([TABLE[:, :2], np.arange(200) % 3])
    options = {"feature_names": ["age", "income", "colour"], "categorical_features": [2], "random_state": 0}
    options["categorical_names"] = {2: ["red", "green", "blue"]}

    def predict(rows):
        return of_rows(np.column_stack([rows, rows]))

    answer = HardenedLimeTabular(table, hardening=NOISY, **options).explain_instance(table[4], predict, num_samples=60)
    assert {name for name, _ in answer.as_list()} == {"age", "income", "colour=green"}

    def sparse_predict(rows):
        return of_rows(rows.toarray())

    sparse = csr_matrix(np.where(TABLE > 4, TABLE, 0))
    made = HardenedLimeTabular(sparse, feature_names=NAMES, hardening=RAW, random_state=0)
    native = native_lime.LimeTabularExplainer(sparse, feature_names=NAMES, random_state=0)
    answers = [e.explain_instance(sparse[0], sparse_predict, num_samples=60).as_list() for e in (made, native)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("options", [{}, {"char_level": True, "bow": False}], ids=str)
def test_words_and_their_places_are_named_as_natively(options):
    case = CASES["text"]
    native = case.ask(case.native(random_state=0, **options))
    answer = case.ask(case.make(RAW, random_state=0, **options))
    assert answer.as_list() == native.as_list()
    if options.get("bow", True):
        assert answer.as_list(positions=True) == native.as_list(positions=True)


def test_an_image_shows_its_hardened_segments():
    case = CASES["image"]
    answer = case.ask(case.make(random_state=0))
    image, mask = answer.get_image_and_mask(1, positive_only=True, num_features=4)
    best = [segment for segment, weight in answer.local_exp[1] if weight > 0][:4]
    assert np.array_equal(mask == 1, np.isin(blocks(image), best))
    assert np.array_equal(answer.segments, blocks(image))
    assert np.allclose(answer.image, case.instance, rtol=0, atol=1e-7)  # as float32 holds it
    assert answer.image is not case.instance


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_page_shows_hardened_weights_and_no_probabilities():
    case = CASES["tabular"]
    native, answer = case.ask(case.native(*case.made_of, random_state=0)), case.ask(case.make(random_state=0))
    page = answer.as_html()
    assert str(answer.as_list()[0][1]) in page
    for p in native.predict_proba:
        assert str(p) in native.as_html()
        assert str(p) not in page


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_set_is_listed_plotted_and_shown_in_a_notebook_as_natively(monkeypatch):
    name = "text"
    display, shown = pytest.importorskip("IPython.display"), []
    monkeypatch.setattr(display, "display", shown.append)
    case = CASES[name]
    answer = case.make(hardening=Hardening(clip=TopKSet(k=2))).explain_instance(case.instance, case.predict)
    (explained,) = answer.available_labels()
    listed = answer.as_list()
    assert listed == answer.as_list(label=explained)
    assert sorted(weight for _, weight in listed)[-3:] == [0, 1, 1]
    figure = answer.as_pyplot_figure()
    assert [bar.get_width() for bar in figure.axes[0].patches] == [weight for _, weight in reversed(listed)]
    pyplot.close(figure)
    answer.show_in_notebook()
    assert [type(page) for page in shown] == [display.HTML]
    assert f'"{listed[0][0]}"' in shown[0].data


class Rule:
    """A model that is neither torch's nor scikit-learn's."""

    def predict_proba(self, rows):
        p = 1 / (1 + np.exp(-rows[:, 0]))
        return np.stack([1 - p, p], axis=1)


def test_a_model_that_nobody_finds_is_warned_about_once_unless_nothing_is_noised():
    rule = Rule()
    with pytest.warns(OpaqueModelWarning, match="Rule"):
        HardenedLimeTabular(TABLE, hardening=NOISY).explain_instance(TABLE[0], rule.predict_proba, num_samples=50)
    again = HardenedLimeTabular(TABLE, hardening=NOISY).explain_instance(TABLE[0], rule.predict_proba, num_samples=50)
    plain = HardenedLimeTabular(TABLE, hardening=RAW)
    plain = plain.explain_instance(TABLE[0], Rule().predict_proba, num_samples=50, labels=(1,))
    assert plain.as_list() != again.as_list()


def test_a_model_of_scikit_learn_gets_other_noise_when_it_is_fitted_again():
    def noise(classifier):
        loud, plain = (
            HardenedLimeTabular(TABLE, hardening=hardening, random_state=0)
            .explain_instance(TABLE[0], classifier.predict_proba, num_samples=50, labels=(1,))
            .as_map()[1]
            for hardening in (NOISY, RAW)
        )
        return np.array([value for _, value in sorted(loud)]) - np.array([value for _, value in sorted(plain)])

    labels = np.arange(200) % 2
    first, same, other = (LogisticRegression(C=c).fit(TABLE, labels) for c in (1.0, 1.0, 0.5))
    np.testing.assert_allclose(noise(first), noise(same), atol=1e-9)
    assert np.abs(noise(first) - noise(other)).max() > 1e-3


def test_what_cannot_be_answered_is_said():
    with pytest.raises(InputError, match="expected a text"):
        HardenedLimeText(hardening=NOISY).explain_instance(["words"], of_texts)
    with pytest.raises(TypeError, match="missing a required argument"):
        HardenedLimeText(hardening=NOISY).explain_instance("words")
    with pytest.raises(ConfigurationTypeError, match="hardening must be"):
        HardenedLimeImage(hardening="strong")
    with pytest.raises(TypeError, match="unexpected keyword argument 'bins'"):
        harden_aix360(lime_text.LimeTextExplainer(), NOISY, bins=True)


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


@pytest.mark.filterwarnings("ignore::safexplain.errors.OpaqueModelWarning")
def test_weights_that_cannot_be_right_are_told_to_the_operator(caplog):
    def sure(rows):
        return np.tile([1.0, 0.0, 0.0], (len(rows), 1))

    def right(rows):
        return of_rows(rows)

    explainer = HardenedLimeTabular(TABLE, feature_names=NAMES, hardening=RAW, random_state=0)
    explainer.explain_instance(TABLE[0], right, num_samples=200)
    assert caplog.records == []
    answer = explainer.explain_instance(TABLE[0], sure, num_samples=200)
    assert [weight for _, weight in answer.as_list()] == [0.0] * 6
    assert ["zero everywhere" in record.getMessage() for record in caplog.records] == [True]
