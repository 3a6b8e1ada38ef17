"""The contract of `safexplain.testing` over the explainers of Alibi, AIX360 and LIME, whose answers are objects."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from safexplain import HardenedProtoDash
from safexplain.explain import anchor_hardening
from safexplain.explain.aix360 import HardenedLimeImage, HardenedLimeTabular, HardenedLimeText
from safexplain.explain.alibi import HardenedAnchorImage, HardenedAnchorTabular
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise
from safexplain.testing import check_explainer
from safexplain.testing.markers import MARKER_NUMBER, MARKER_TEXT

pytestmark = pytest.mark.filterwarnings("ignore::safexplain.errors.OpaqueModelWarning")
KEY = b"a key of thirty-two bytes, fixed"
NOISY = Hardening(noise=GaussianNoise(0.05, key=KEY))
ROWS = np.random.default_rng(0).normal(size=(60, 4))
PICTURE = np.random.default_rng(1).random((12, 12, 3))
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


def anchors_of_tables(model, hardening):
    made = HardenedAnchorTabular(probabilities(model), list("abcd"), seed=0, hardening=hardening)
    return made.fit(ROWS)


def anchors_of_pictures(model, hardening):
    return HardenedAnchorImage(probabilities(model), PICTURE.shape, segmentation_fn="slic", hardening=hardening)


def protodash(model, hardening):
    return HardenedProtoDash(ROWS, hardening=hardening)


def of_lime(kind, inputs, features, predict, **options):
    model = net(features)
    options |= {predict[0]: predict[1](model)}
    return "lime", lambda model, hardening: kind(hardening=hardening), model, inputs, options, NOISY, plant_lime


TABULAR = partial(HardenedLimeTabular, ROWS, feature_names=list("abcd"))
CASES = {
    "AnchorTabular": ("alibi", anchors_of_tables, net(4), ROWS[0], {}, anchor_hardening(KEY), plant_alibi),
    "AnchorImage": ("alibi", anchors_of_pictures, net(432), PICTURE, {}, anchor_hardening(KEY), plant_alibi),
    "ProtoDash": ("aix360", protodash, net(4), ROWS[:1] + 0.1, {"m": 3}, NOISY, plant_protodash),
    "LimeTabular": of_lime(TABULAR, ROWS[0], 4, ("predict_fn", probabilities), num_samples=40),
    "LimeText": of_lime(HardenedLimeText, "a good film", 2, ("classifier_fn", of_words), num_samples=40),
    "LimeImage": of_lime(HardenedLimeImage, PICTURE, 432, ("classifier_fn", probabilities), num_samples=20),
}
"""Name -> library, factory, model, inputs, options, hardening, what plants markers."""


@pytest.mark.parametrize("name", CASES)
def test_the_contract_holds_for_answers_that_are_objects(name):
    library, factory, model, inputs, options, hardening, plant = CASES[name]
    pytest.importorskip(library)
    report = check_explainer(factory, model, inputs, options=options, hardening=hardening, plant=plant)
    assert set(report.passed) >= TOLD, str(report)
