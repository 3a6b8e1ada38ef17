"""The contract of `safexplain.testing` over the explainers of Alibi, AIX360 and LIME, whose answers are objects."""

import warnings
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from safexplain import HardenedProtoDash
from safexplain.explain import anchor_hardening
from safexplain.explain.aix360 import HardenedLimeImage, HardenedLimeTabular, HardenedLimeText
from safexplain.explain.alibi import HardenedAnchorImage, HardenedAnchorTabular, HardenedAnchorText
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise
from safexplain.testing import check_explainer
from safexplain.testing.check import ContractError
from safexplain.testing.markers import MARKER_NUMBER, MARKER_TEXT

pytestmark = pytest.mark.filterwarnings("ignore::safexplain.errors.OpaqueModelWarning")
KEY = b"a key of thirty-two bytes, fixed"
NOISY = Hardening(noise=GaussianNoise(0.05, key=KEY))
ROWS = np.random.default_rng(0).normal(size=(60, 4))
PICTURE = np.random.default_rng(1).random((12, 12, 3))
QUICK = {"threshold": 0.6, "delta": 0.5, "tau": 0.4, "batch_size": 10, "coverage_samples": 20}
TOLD = {"only_listed_arrays_leave", "asking_again_gives_the_same_answer", "leaves_nothing_behind"}


def net(features):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 2), nn.Softmax(1)).eval()


def probabilities(model):
    def predict(rows):
        with torch.no_grad():
            return model(torch.as_tensor(np.asarray(rows), dtype=torch.float32)).double().numpy()

    return predict


def of_words(model):
    """Words as their lengths."""
    return lambda texts: probabilities(model)([[len(text), text.count("good")] for text in texts])


def plant_alibi(explanation, explainer):
    explanation.data["raw"] = {"examples": [np.full(4, MARKER_NUMBER)], "prediction": MARKER_TEXT}
    explanation.data["anything"] = MARKER_TEXT
    explanation.meta["params"]["images_background"] = np.full((2, 2), MARKER_NUMBER)
    explanation.meta["params"]["seed"] = MARKER_TEXT
    explanation.raw = explanation.secret = MARKER_TEXT
    return explanation


def plant_lime(explanation, explainer):
    explanation.intercept[1] = explanation.score = MARKER_NUMBER
    explanation.local_pred = explanation.predict_proba = np.full(2, MARKER_NUMBER)
    explanation.secret = MARKER_TEXT
    return explanation


def plant_protodash(answer, explainer):
    weights, chosen, values = answer
    return weights, chosen, np.full_like(np.asarray(values, dtype=float), MARKER_NUMBER)


def plant_in_what_leaves(explanation, explainer):
    explanation.data["anchor"] = [MARKER_TEXT]
    return explanation


def anchors_of_tables(model, hardening):
    made = HardenedAnchorTabular(probabilities(model), list("abcd"), seed=0, hardening=hardening)
    return made.fit(ROWS)


def anchors_of_pictures(model, hardening):
    return HardenedAnchorImage(probabilities(model), PICTURE.shape, segmentation_fn="slic", hardening=hardening)


@cache
def words():
    return pytest.importorskip("spacy").blank("en")


def anchors_of_texts(model, hardening):
    return HardenedAnchorText(
        lambda texts: of_words(model)(texts).argmax(1),
        sampling_strategy="unknown",
        nlp=words(),
        hardening=hardening,
    )


def lime_of(kind, *args, **kwargs):
    return lambda model, hardening: kind(*args, hardening=hardening, **kwargs)


CASES = {
    "AnchorTabular": ("alibi", anchors_of_tables, net(4), ROWS[0], {}, anchor_hardening(KEY), plant_alibi),
    "AnchorImage": ("alibi", anchors_of_pictures, net(432), PICTURE, {}, anchor_hardening(KEY), plant_alibi),
    "AnchorText": ("alibi", anchors_of_texts, net(2), "a good film", QUICK, anchor_hardening(KEY), plant_alibi),
    "ProtoDash": (
        "aix360",
        lambda model, hardening: HardenedProtoDash(ROWS, hardening=hardening),
        net(4),
        ROWS[:1] + 0.1,
        {"m": 3},
        NOISY,
        plant_protodash,
    ),
    "LimeTabular": (
        "lime",
        lime_of(HardenedLimeTabular, ROWS, feature_names=list("abcd")),
        net(4),
        ROWS[0],
        {"predict_fn": probabilities(net(4)), "num_samples": 40},
        NOISY,
        plant_lime,
    ),
    "LimeText": (
        "lime",
        lime_of(HardenedLimeText),
        net(2),
        "a good film",
        {"classifier_fn": of_words(net(2)), "num_samples": 40},
        NOISY,
        plant_lime,
    ),
    "LimeImage": (
        "lime",
        lime_of(HardenedLimeImage),
        net(432),
        PICTURE,
        {"classifier_fn": probabilities(net(432)), "num_samples": 20},
        NOISY,
        plant_lime,
    ),
}
"""Name -> library, factory, model, inputs, options, hardening, what plants markers."""


def check(name, plant=None):
    library, factory, model, inputs, options, hardening, usual = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # spaCy's, about typer
        pytest.importorskip(library)
    return check_explainer(factory, model, inputs, options=options, hardening=hardening, plant=plant or usual)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "AnchorText" else n for n in CASES])
def test_the_contract_holds_for_answers_that_are_objects(name):
    report = check(name)
    assert set(report.passed) >= TOLD, str(report)


def test_a_marker_in_a_field_that_leaves_is_found():
    with pytest.raises(ContractError, match="only_listed_arrays_leave"):
        check("AnchorTabular", plant_in_what_leaves)
