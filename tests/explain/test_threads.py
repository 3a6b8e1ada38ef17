"""Threads get right answers also where a model cannot be copied; `tests/testing` has the contract for every row."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from explain_nets import NOISY, hardened_class, image_net, images, quiet
from torch import nn

from safexplain.explain import CATALOG, harden
from safexplain.hardening.hardening import Hardening

pytestmark = quiet


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
