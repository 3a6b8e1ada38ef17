"""The private copy of a model: the same function, nothing shared that a hook could touch."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from captum.attr import LRP, NoiseTunnel, Saliency
from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule, EpsilonRule, GammaRule
from explain_nets import NOISY, PlainConv, hardened_class, image_net, images, quiet
from torch import nn
from torch.nn.utils import weight_norm

from safexplain.explain import CATALOG, harden
from safexplain.explain.isolation import private_copy
from safexplain.hardening.hardening import Hardening


def copy_of(model, share_parameters=True):
    private = private_copy({"forward_func": model}, (model,), share_parameters=share_parameters)
    return None if private is None else private["forward_func"]


def test_a_copy_shares_parameters_and_no_module_or_buffer():
    model = image_net()
    private = copy_of(model)
    assert not {id(part) for part in model.modules()} & {id(part) for part in private.modules()}
    assert [id(p) for p in model.parameters()] == [id(p) for p in private.parameters()]
    assert not {b.data_ptr() for b in model.buffers()} & {b.data_ptr() for b in private.buffers()}
    assert torch.equal(private(images()), model(images()))


def test_references_between_modules_stay_within_the_copy():
    class Listed(nn.Module):
        """Keeps its layers in a plain list too, and a bound method of one."""

        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.ReLU()
            self.steps, self.step = [self.first], self.second.forward

        def forward(self, x):
            for step in self.steps:
                x = step(x)
            return self.step(x)

    model = Listed()
    private = copy_of(model)
    assert private.steps[0] is private.first
    assert private.first is not model.first
    assert private.step.__self__ is private.second


def test_tied_weights_stay_tied_and_old_weight_norm_is_copied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    private = copy_of(model, share_parameters=False)
    assert private[1].weight is private[0].weight


def test_a_tensor_that_a_graph_computed_does_not_stop_the_copy():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = weight_norm(nn.Linear(4, 3))
    x = torch.randn(2, 4)
    for share in (True, False):
        assert torch.equal(copy_of(model, share)(x), model(x))


def test_what_keeps_the_original_is_not_passed_off_as_a_copy():
    model = image_net()
    assert private_copy({"f": lambda x: model(x)}, (model,), share_parameters=True) is None

    class Handy(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.ReLU()
            part = self.part
            self.apply_part = lambda x: part(x)

    assert copy_of(Handy()) is None
    model.lock = threading.Lock()
    assert copy_of(model) is None


def test_a_closure_over_a_model_in_training_mode_leaves_its_running_statistics():
    model = image_net().train()
    before = copy.deepcopy(model.state_dict())
    harden(Saliency(lambda x: model(x)), NOISY).attribute(images(), target=1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Sevenfold(EpsilonRule):
    """A rule of somebody's own that writes into the weights themselves."""

    def _manipulate_weights(self, module, inputs, outputs):
        module.weight.data.mul_(7.0)


@pytest.mark.parametrize(("rule", "tunnel"), [(GammaRule, True), (Alpha1_Beta0_Rule, False), (Sevenfold, True)])
def test_lrp_puts_other_weights_into_a_copy_only(rule, tunnel):
    """Captum's own rules get parameters in the same memory, whose data they replace; other rules get a full copy. The
    second call of a NoiseTunnel finds the weights as the first did."""
    model, x = PlainConv(0).eval(), images().requires_grad_()
    ruled = [part for part in model.modules() if isinstance(part, nn.Conv2d)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    versions = [p._version for p in model.parameters()]

    def explainer(net):
        return NoiseTunnel(LRP(net)) if tunnel else LRP(net)

    options = {"nt_samples": 3, "nt_samples_batch_size": 1, "stdevs": 0.0} if tunnel else {}
    for part in ruled:
        part.rule = rule()
    native = explainer(copy.deepcopy(model)).attribute(x, target=1, **options)
    found = harden(explainer(model), Hardening.none()).attribute(x, target=1, **options)
    assert torch.equal(found, native)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert [p._version for p in model.parameters()] == versions


@quiet
def test_calls_on_a_model_that_cannot_be_copied_take_turns():
    class Uncopyable(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.lock, self.inside, self.most = image_net(), threading.Lock(), 0, 0

        def forward(self, x):
            with self.lock:
                self.inside += 1
                self.most = max(self.most, self.inside)
            try:
                return self.net(x)
            finally:
                with self.lock:
                    self.inside -= 1

    model, row = Uncopyable().eval(), CATALOG["GuidedBackprop"]
    explainer = hardened_class(row)(model, hardening=NOISY)
    expected = explainer.attribute(images(), target=1)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: explainer.attribute(images(), target=1), range(32)))
    assert all(torch.allclose(answer, expected, atol=1e-5) for answer in answers)
    assert model.most == 1
