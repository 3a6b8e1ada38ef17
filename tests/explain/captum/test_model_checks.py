"""A method is itself on a model, or it is refused: DeepLift by the sum of its values, others by ReLU modules."""

import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import captum.attr
import pytest
import torch
from captum.attr import DeepLift
from explain_nets import NOISY, TwoInputs, image_net, images, quiet
from torch import nn
from torch.nn import functional as F

from safexplain import HardenedDeepLift, HardenedIG, HardenedSaliency, HardenedSmoothGrad, Probability, harden
from safexplain.errors import RefusedError, TrainingModeWarning
from safexplain.explain import captum as model_checks
from safexplain.explain.captum import in_training_mode
from safexplain.explain.hardened import HardenedDeepLiftShap
from safexplain.hardening.hardening import Hardening

pytestmark = quiet
PLAIN = Hardening.none()


def off(model, x, target=1, baselines=None):
    """Share by which Captum's own DeepLift fails to add up: the largest over the batch."""
    found, delta = DeepLift(model).attribute(
        x.clone().requires_grad_(), baselines=baselines, target=target, return_convergence_delta=True
    )
    return (delta.abs() / found.abs().flatten(1).sum(1)).max().item()


def net(*middle, bias=True, seed=0):
    """Convolution, the given modules, convolution, and a linear layer, with statistics of some data."""
    torch.manual_seed(seed)
    features = nn.Sequential(nn.Conv2d(3, 6, 3, bias=bias), *middle, nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Flatten())
    with torch.no_grad():
        features.train()
        for _ in range(20):
            width = features(1 + 2 * torch.randn(16, 3, 12, 12)).shape[1]
    return nn.Sequential(*features, nn.Linear(width, 5)).eval()


def pictures(batch=4, seed=0):
    return torch.randn(batch, 3, 12, 12, generator=torch.Generator().manual_seed(seed))


class Functional(nn.Module):
    """As `net`, with its activations called as functions."""

    def __init__(self, activation=F.relu):
        super().__init__()
        self.inner, self.activation = net(nn.Identity()), activation

    def forward(self, x):
        return self.inner[5](self.inner[4](self.activation(self.inner[2](self.activation(self.inner[0](x))))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.mixing, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.mixing(x, x, x)[0].mean(1))


class Residual(nn.Module):
    """Additions are fine, products of two paths are not."""

    def __init__(self, product=False):
        super().__init__()
        self.inner, self.relu, self.product = net(nn.Identity()), nn.ReLU(), product
        self.side = nn.Conv2d(3, 6, 3)

    def forward(self, x):
        main, side = self.inner[0](x), self.relu(self.side(x))
        both = main * side if self.product else main + side
        return self.inner[5](self.inner[4](self.inner[3](self.inner[2](both))))


FINE = {
    "ReLU": lambda: net(nn.ReLU()),
    "in place": lambda: net(nn.ReLU(inplace=True)),
    "LeakyReLU": lambda: net(nn.LeakyReLU()),
    "ELU": lambda: net(nn.ELU()),
    "Tanh": lambda: net(nn.Tanh()),
    "BatchNorm": lambda: net(nn.BatchNorm2d(6), nn.ReLU()),
    "AvgPool": lambda: net(nn.ReLU(), nn.Dropout(0.5), nn.AvgPool2d(2)),
    "MaxPool with overlap": lambda: net(nn.ReLU(), nn.MaxPool2d(3, 2)),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(432, 5)),
    "sigmoid at the end": lambda: nn.Sequential(net(nn.ReLU()), nn.Sigmoid()),
    "residual": Residual,
    "half of the functions are linear": lambda: Functional(torch.neg),
}
NO_RULE = {
    "GELU": lambda: net(nn.GELU()),
    "ReLU6": lambda: net(nn.ReLU6()),
    "PReLU": lambda: net(nn.PReLU()),
    "LayerNorm": lambda: net(nn.LayerNorm((6, 10, 10)), nn.ReLU()),
    "GroupNorm": lambda: net(nn.GroupNorm(2, 6), nn.ReLU()),
    "MultiheadAttention": Attention,
    "LSTM": lambda: nn.Sequential(nn.LSTM(6, 4)),
}
DOES_NOT_ADD_UP = {
    "functional relu": Functional,
    "functional gelu": lambda: Functional(F.gelu),
    "Softsign": lambda: net(nn.Softsign()),
    "Softmax": lambda: nn.Sequential(net(nn.ReLU()), nn.Softmax(1)),
    "product": lambda: Residual(product=True),
}


@pytest.mark.parametrize("name", FINE)
def test_it_answers_where_the_values_add_up(name):
    model, x = FINE[name](), pictures()
    assert off(model, x) < 1e-4
    native = DeepLift(model).attribute(x, target=1)
    assert torch.equal(HardenedDeepLift(model, hardening=PLAIN).attribute(x, target=1), native)


def test_modules_without_a_rule_are_refused_when_the_explainer_is_made():
    for name in NO_RULE:
        with pytest.raises(RefusedError, match=rf"no rule for {name} in .*Use HardenedIG"):
            HardenedDeepLift(NO_RULE[name](), hardening=NOISY)


@pytest.mark.parametrize("name", DOES_NOT_ADD_UP)
def test_the_rest_is_refused_at_the_first_call_by_the_sum(name):
    model, x = DOES_NOT_ADD_UP[name](), pictures()
    assert off(model, x) > 1e-3
    for explainer in (HardenedDeepLift(model, hardening=NOISY), HardenedDeepLift(model, hardening=PLAIN)):
        for _ in range(2):  # a refusal is not forgotten
            with pytest.raises(RefusedError, match=r"do not add up on .*off by [0-9.]+%.*HardenedIG"):
                explainer.attribute(x, target=1)


WRAPPED = {
    "DeepLiftShap": (captum.attr.DeepLiftShap, {"target": 1, "baselines": torch.zeros(2, 3, 12, 12)}),
    "LayerDeepLift": (lambda m: captum.attr.LayerDeepLift(m, first(m)), {"target": 1}),
    "NeuronDeepLift": (lambda m: captum.attr.NeuronDeepLift(m, first(m)), {"neuron_selector": (0, 1, 1)}),
    "NeuronDeepLiftShap": (
        lambda m: captum.attr.NeuronDeepLiftShap(m, first(m)),
        {"neuron_selector": (0, 1, 1), "baselines": torch.zeros(2, 3, 12, 12)},
    ),
    "HardenedSmoothGrad": (lambda m: HardenedSmoothGrad(DeepLift(m), hardening=NOISY), {"target": 1, "nt_samples": 2}),
}


def first(model):
    return next(part for part in model.modules() if isinstance(part, nn.Conv2d))


def hardened(explainer, hardening=NOISY):
    return explainer if explainer.__class__.__name__.startswith("Hardened") else harden(explainer, hardening)


@pytest.mark.parametrize("name", WRAPPED)
def test_what_is_made_of_it_is_checked_as_well(name):
    make, options = WRAPPED[name]
    with pytest.raises(RefusedError, match="no rule for ReLU6"):
        hardened(make(net(nn.ReLU6())))
    with pytest.raises(RefusedError, match="do not add up"):
        hardened(make(Functional())).attribute(pictures(), **options)
    for model in (net(nn.ReLU()), net(nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2))):
        assert hardened(make(model)).attribute(pictures(), **options).isfinite().all()


SINGLE, HALF = torch.finfo(torch.float32).eps, torch.finfo(torch.float16).eps


@pytest.mark.parametrize(
    ("sizes", "offs", "share"),
    [  # for each example the total size of the values, how far their sum is off, and what is said if it is too far
        ([8.0, 8.0], [0.00799, -0.00799], None),
        ([8.0, 8.0], [0.0, 0.00801], "0.1%"),
        ([8.0, 16.0], [-1.0, 0.0], "12.5%"),
        ([0.0, 8.0], [8 * SINGLE, 0.0], None),
        ([2.0**-40, 8.0], [8.5 * SINGLE, 0.0], "111411200.0%"),
        ([1.0, 1.0], [72 * HALF, 0.0], None),
        ([1.0, 1.0], [72.5 * HALF, 0.0], "7.1%"),
    ],
)
def test_the_sum_may_be_off_by_a_thousandth_of_the_size_and_by_rounding(sizes, offs, share, monkeypatch):
    dtype = torch.float16 if sizes == [1.0, 1.0] else torch.float32
    maps = torch.tensor([[size / 4, -3 * size / 4] for size in sizes], dtype=dtype)
    found = SimpleNamespace(attribute=lambda *_, **__: ((maps,), torch.tensor(offs, dtype=dtype)))
    monkeypatch.setattr(model_checks, "DeepLift", lambda model: found)
    explainer = HardenedDeepLift(nn.Linear(2, 2).eval(), hardening=PLAIN)
    with nullcontext() if share is None else pytest.raises(RefusedError, match=rf"off by {share} of their size"):
        explainer.attribute(torch.ones(2, 2), target=1)


def test_inputs_like_the_baseline_do_not_count_as_a_look():
    """Services are warmed up with zeros, on which every sum is right; what is no number tells nothing either."""
    explainer = HardenedDeepLift(Functional(), hardening=PLAIN)
    assert not explainer.attribute(torch.zeros(2, 3, 12, 12), target=1).any()
    explainer.attribute(torch.full((2, 3, 12, 12), float("nan")), target=1)
    explainer.attribute(torch.empty(0, 3, 12, 12), target=1)
    with pytest.raises(RefusedError, match="do not add up"):
        explainer.attribute(pictures(), target=1)
    layer = harden(captum.attr.LayerDeepLift(model := Functional(), first(model)), PLAIN)
    layer.attribute(torch.empty(0, 3, 12, 12), target=1)
    with pytest.raises(RefusedError, match="do not add up"):
        layer.attribute(pictures(), target=1)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2), nn.AdaptiveMaxPool2d(5)], ids=str)
def test_max_pooling_is_refused_with_baselines_for_which_captum_does_not_add_up(pool):
    """Captum's rule for max pooling is lost behind an activation module; flat baselines hide that."""
    model, x, baselines = net(nn.ReLU(), pool), pictures(), pictures(seed=1)
    assert off(model, x) < 1e-4
    assert off(model, x, baselines=baselines) > 0.01
    explainer = HardenedDeepLift(model, hardening=PLAIN)
    assert explainer.attribute(x, target=1).any()
    for given in (baselines, baselines[:1], (baselines,)):
        with pytest.raises(RefusedError, match=r"do not add up.*max pooling if the baseline is not flat"):
            explainer.attribute((x,) if isinstance(given, tuple) else x, given, target=1)
    set_of_them = torch.cat([torch.zeros(1, 3, 12, 12), baselines[:2]])
    with pytest.raises(RefusedError, match="do not add up"):
        HardenedDeepLiftShap(model, hardening=PLAIN).attribute(x, set_of_them, target=1)
    assert explainer.attribute(x, target=1).any()  # still


def test_baselines_of_all_kinds_work_where_the_values_add_up():
    model, x = net(nn.BatchNorm2d(6), nn.ReLU()), pictures()
    explainer = HardenedDeepLift(model, hardening=PLAIN)
    for given in (0.5, 1, pictures(seed=1), pictures(1, seed=1), torch.zeros(1, 3, 12, 12)):
        native = DeepLift(model).attribute(x, given, target=1)
        assert torch.equal(explainer.attribute(x, given, target=1), native)
    shap = HardenedDeepLiftShap(net(nn.ReLU()), hardening=PLAIN)
    for given in (pictures(3, seed=1), lambda: pictures(3, seed=1), lambda inputs: inputs[:2] * 0):
        assert shap.attribute(x, given, target=1).isfinite().all()


def test_a_model_in_training_mode_is_looked_at_later():
    model, x = nn.Sequential(nn.Dropout(0.01), Functional()).train(), pictures()
    explainer = HardenedDeepLift(model, hardening=PLAIN)
    explainer.attribute(x, target=1)
    model.eval()
    with pytest.raises(RefusedError, match="do not add up"):
        explainer.attribute(x, target=1)


@pytest.mark.parametrize(
    "wrap", [Probability, lambda inner: nn.Sequential(inner, nn.Softmax(1)), lambda _: Functional()]
)
def test_a_wrapper_that_nobody_switched_to_evaluation_is_looked_at(wrap):
    inner = net(nn.BatchNorm2d(6), nn.ReLU())
    model = wrap(inner)
    assert model.training or isinstance(model, Probability)  # which has the mode of its classifier
    assert not inner.training
    with pytest.raises(RefusedError, match="do not add up"):
        HardenedDeepLift(model, hardening=PLAIN).attribute(pictures(), target=1)


def test_several_inputs_and_arguments_are_passed_on_to_the_look():
    model, x = TwoInputs().eval(), (images(), torch.randn(4, 5))
    native = DeepLift(model).attribute(x, target=1)
    released = HardenedDeepLift(model, hardening=PLAIN).attribute(x, target=1)
    assert all(torch.equal(a, b) for a, b in zip(released, native, strict=True))


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
    assert model_checks.check_modes((model,))  # warned of before
    assert not model_checks.check_modes((model.eval(),))


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
