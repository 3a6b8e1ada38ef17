"""A model in training mode gets a warning, once, wherever an explainer is made or asked; in evaluation mode none."""

import warnings

import captum.attr
import torch
from explain_nets import NOISY, image_net, images, quiet
from torch import nn

from safexplain import HardenedIG, HardenedSaliency, HardenedSmoothGrad, Probability, harden
from safexplain.errors import TrainingModeWarning
from safexplain.explain.captum.model_checks import in_training_mode

pytestmark = quiet


def told(run, *arguments):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(*arguments)
    return [w for w in seen if w.category is TrainingModeWarning]


def dropout_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 5))


MAKERS = {
    "a hardened class": lambda model: HardenedIG(model, hardening=NOISY),
    "a smoothed one": lambda model: HardenedSmoothGrad(captum.attr.Saliency(model), hardening=NOISY),
    "harden": lambda model: harden(captum.attr.DeepLift(model), NOISY),
    "of a function": lambda model: HardenedSaliency(lambda x: Probability(model)(x), hardening=NOISY),
    "without hardening": lambda model: HardenedIG(model, hardening=NOISY.none()),
    "of a layer": lambda model: harden(captum.attr.LayerActivation(model, model[1]), NOISY),
    "the catalogued one": lambda model: HardenedIG.catalogued()(model, hardening=NOISY),
}


def test_making_an_explainer_warns_and_says_what_to_do():
    for make in MAKERS.values():
        (warning,) = told(make, dropout_net())
        assert "Sequential is in training mode (1, 2, 4)" in str(warning.message)
        assert "Call model.eval()" in str(warning.message)
        assert told(make, dropout_net().eval()) == []


def test_the_warning_points_at_the_callers_line():
    for run in (lambda: HardenedIG(dropout_net()), lambda: harden(captum.attr.Saliency(dropout_net()))):
        assert told(run)[0].filename == __file__


def test_a_call_warns_where_the_mode_was_changed_after_the_explainer_was_made():
    model, x = image_net(), images(2)
    explainer = HardenedSaliency(model, hardening=NOISY)
    assert told(lambda: explainer.attribute(x, target=1)) == []
    model[1].train()  # batch normalisation alone
    (warning,) = told(lambda: explainer.attribute(x, target=1))
    assert "(1)" in str(warning.message)


def test_each_model_gets_one_warning():
    model, other = dropout_net(), dropout_net()
    explainer = HardenedSaliency(model, hardening=NOISY)
    assert told(lambda: explainer.attribute(images(2), target=1)) == []
    assert told(lambda: HardenedIG(model, hardening=NOISY)) == []
    assert len(told(lambda: HardenedIG(other, hardening=NOISY))) == 1


class Own(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return nn.functional.dropout(self.net(x), training=self.training)


def test_flags_of_what_has_no_mode_do_not_count():
    net = dropout_net().eval()
    harmless = {
        "a container": nn.Sequential(net),
        "our own wrapper": Probability(net),
        "a softmax at the end": nn.Sequential(net, nn.Softmax(1)),
        "parallel": nn.DataParallel(net),
        "an exported graph": torch.export.export(net, (images(2),)).module(),
    }
    for name, model in harmless.items():
        assert in_training_mode(model) == [], name
    assert in_training_mode(Own(net)) == ["Own"]  # nobody can see that it matters, and here it does
    assert in_training_mode(nn.Sequential(net, nn.Dropout(0.1))) == ["1"]


def test_a_probability_is_in_the_mode_of_its_model():
    net = dropout_net().eval()
    probability = Probability(net)
    assert not probability.training
    assert probability.train().training
    assert net.training
    net.eval()
    assert not probability.training
