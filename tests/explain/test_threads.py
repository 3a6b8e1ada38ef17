"""Threads get right answers: hook-based methods never touch the modules that other threads use."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from explain_nets import NOISY, ROWS, Gate, hardened_class, image_net, images, quiet, run
from torch import nn

from safexplain.explain import CATALOG, harden
from safexplain.hardening.hardening import Hardening

pytestmark = quiet
HOOKED = [row for row in ROWS if row.hooks]


def gated_net():
    """An image net that lets the test run between its forward pass and its backward pass."""
    return nn.Sequential(*image_net(), Gate()).eval()


def answer_meanwhile(explain, ask):
    """What `ask` gets while `explain` is in the middle of the model in another thread."""
    Gate.entered.clear()
    Gate.passed.clear()
    explainer = threading.Thread(target=explain, name="explainer")
    explainer.start()
    assert Gate.entered.wait(20)
    try:
        return ask()
    except Exception as error:
        return error
    finally:
        Gate.passed.set()
        explainer.join()


def questions(model):
    x = images(2, seed=9)

    def predict():
        with torch.no_grad():
            return model(x)

    def gradient():
        z = x.clone().requires_grad_()
        return torch.autograd.grad(model(z)[:, 1].sum(), z)[0]

    return predict, gradient


@pytest.mark.parametrize("row", HOOKED, ids=lambda row: row.name)
def test_predictions_and_gradients_beside_a_hook_based_explanation_are_right(row):
    model = gated_net()
    explainer = hardened_class(row)(model, hardening=NOISY)
    for ask in questions(model):
        assert torch.equal(answer_meanwhile(lambda: run(explainer, row, images()), ask), ask())


@pytest.mark.parametrize("row", HOOKED, ids=lambda row: row.name)
def test_beside_the_native_explainer_they_are_wrong(row):
    """The oracle of the test above: this is what isolation is for."""
    model = gated_net()
    _, gradient = questions(model)
    wrong = answer_meanwhile(lambda: run(row.explainer(model), row, images()), gradient)
    assert isinstance(wrong, Exception) or not torch.allclose(wrong, gradient(), atol=1e-4)


def test_threads_may_share_one_input_tensor():
    model, x, row = image_net(), images(), CATALOG["Saliency"]
    explainer = hardened_class(row)(model, hardening=Hardening.none())
    expected = explainer.attribute(x, target=1)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: explainer.attribute(x, target=1), range(64)))
    assert all(torch.allclose(answer, expected, atol=1e-6) for answer in answers)
    assert not x.requires_grad


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


def test_a_closure_runs_on_the_original_under_the_lock():
    from captum.attr import LayerGradCam

    model = image_net()
    native = LayerGradCam(lambda x: model(x).softmax(1), model[3])
    expected = native.attribute(images(), target=1)
    assert torch.equal(harden(native, Hardening.none()).attribute(images(), target=1), expected)
