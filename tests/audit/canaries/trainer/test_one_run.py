"""Many canaries in one training of a user's own function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader

from safexplain._privacy_loss import Steps
from safexplain.audit.canaries import CanaryProbe, Claim
from safexplain.audit.canaries.canary import Direction
from safexplain.audit.canaries.trainer.data import NeighbouringData, records
from safexplain.audit.canaries.trainer.gradient_hook import GradientHook
from safexplain.errors import ConfigurationError, InputError, RefusedError

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Full backward hook")

NOISE = 8.0
CLAIM = Claim(Steps(NOISE, 1.0, 20, "full-batch"), 1e-5)
X = torch.randn(300, 400, generator=torch.Generator().manual_seed(0))
Y = torch.arange(300) % 2


def trainer(noise: float = NOISE, calls: list[int] | None = None) -> Any:
    """Full-batch DP-SGD of a linear model, gradients of single records by hand."""

    def train(dataset: Any, generator: torch.Generator) -> nn.Module:
        if calls is not None:
            calls.append(len(dataset))
        x, y = (torch.stack(part) for part in zip(*dataset, strict=True))
        w = torch.zeros(2, X.shape[1])
        for _ in range(20):
            residual = (x @ w.T).softmax(1) - nn.functional.one_hot(y, 2)
            g = residual[:, :, None] * x[:, None]
            g *= (1 / g.flatten(1).norm(dim=1)).clamp(max=1)[:, None, None]
            w -= 0.5 / len(x) * (g.sum(0) + noise * torch.randn(w.shape, generator=generator))
        model = nn.Linear(X.shape[1], 2, bias=False)
        model.weight.data = w
        return model

    return train


def opacus_loop(noise: float) -> Any:
    """Full batches through Opacus' optimizer, ten steps."""

    def train(dataset: Any, generator: torch.Generator) -> nn.Module:
        model = nn.Linear(X.shape[1], 2)
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=noise,
            data_loader=DataLoader(dataset, batch_size=len(dataset)), max_grad_norm=1.0, poisson_sampling=False,
            noise_generator=generator,
        )  # fmt: skip
        for _ in range(10):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        return model

    return train


def test_a_function_is_called_once_and_its_records_are_canaries_by_the_flip_of_a_coin():
    calls: list[int] = []
    found = CanaryProbe(trainer(calls=calls), (X, Y), claim=CLAIM).run_once(250)
    assert calls == [300]
    assert (found.runs, found.canaries, found.guesses, found.scenario) == (1, 250, 50, "mislabelled")
    assert found.epsilon_lower <= found.claim.substitute
    again = CanaryProbe(trainer(), (X, Y), claim=CLAIM).run_once(250)
    assert again.correct == found.correct


@pytest.mark.parametrize("seed", range(3))
def test_a_function_with_too_little_noise_is_found_in_one_run_and_a_right_one_is_not(seed):
    broken = CanaryProbe(trainer(noise=0.2), (X, Y), claim=CLAIM, seed=seed).run_once(300)
    assert broken.verdict == "violates the claim: a bug"
    right = CanaryProbe(trainer(), (X, Y), claim=CLAIM, seed=seed).run_once(300)
    assert right.keeps_claim is not False


@pytest.mark.parametrize("seed", range(2))
def test_many_gradient_canaries_tell_a_loop_without_its_noise_from_a_right_one(seed):
    claim = Claim(Steps(NOISE, 1.0, 10, "full-batch"), 1e-5)
    broken = CanaryProbe(opacus_loop(NOISE / 8), (X, Y), claim=claim, scenario="gradient", seed=seed).run_once(200)
    assert broken.verdict == "violates the claim: a bug"
    assert broken.scenario == "gradient"
    right = CanaryProbe(opacus_loop(NOISE), (X, Y), claim=claim, scenario="gradient", seed=seed).run_once(200)
    assert right.keeps_claim is not False
    assert right.correct > right.guesses * 0.6, "canaries are seen"


def test_each_gradient_canary_is_in_its_rows_alone_and_clipped():
    rows, sums = [3, 5, 8], []
    signed = ((7, 1.0), (0, -1.0), (2, 1.0))
    hook = GradientHook({row: (Direction((at,), (sign,)),) for row, (at, sign) in zip(rows, signed, strict=True)})
    data = records((X[:20, :4], Y[:20]))

    def loop() -> None:
        model = nn.Linear(4, 2)
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=0.0,
            data_loader=DataLoader(NeighbouringData(data, fetched=hook.fetched), batch_size=20), max_grad_norm=0.5,
            poisson_sampling=False,
        )  # fmt: skip
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            samples = [p.grad_sample.clone() for p in optimizer.params]
            own = torch.cat([g.flatten(1) for g in samples], 1)
            others = [row for row in range(20) if row not in rows]
            expected = (own * (0.5 / own.norm(dim=1, keepdim=True)).clamp(max=1))[others].sum(0)
            expected[[7, 0, 2]] += 0.5 * torch.tensor([1.0, -1.0, 1.0])
            optimizer.step()
            sums.append((torch.cat([p.summed_grad.flatten() for p in optimizer.params]), expected))

    with hook.watching():
        loop()
    torch.testing.assert_close(sums[0][0], sums[0][1], rtol=1e-4, atol=1e-5)


def test_natural_canaries_are_records_that_were_not_in_the_data():
    others = (torch.randn(280, 400, generator=torch.Generator().manual_seed(1)), torch.arange(280) % 2)
    probe = CanaryProbe(trainer(noise=0.05), (X, Y), claim=CLAIM, scenario="natural", auxiliary=others)
    found = probe.run_once(280)
    assert found.scenario == "natural"
    assert found.correct > 0.8 * found.guesses
    with pytest.raises(InputError, match="at least 281 records"):
        probe.run_once(281)


def test_what_cannot_be_audited_in_one_run_is_refused_before_it_is_trained():
    calls: list[int] = []
    train = trainer(calls=calls)
    with pytest.raises(ConfigurationError, match="mislabelled, natural, gradient"):
        CanaryProbe(train, (X, Y), claim=CLAIM, scenario="outlier").run_once()
    with pytest.raises(ConfigurationError, match="canaries <= 300"):
        CanaryProbe(train, (X, Y), claim=CLAIM).run_once(301)
    with pytest.raises(InputError, match="3 guesses can all be right by chance"):
        CanaryProbe(train, (X, Y), claim=CLAIM).run_once(15)
    with pytest.raises(ConfigurationError, match="judge_once"):
        CanaryProbe(train, (X, Y), claim=CLAIM, score=lambda model: 0.0).run_once()
    alone = Claim(None, 1e-5, epsilon=2.0)
    with pytest.raises(ConfigurationError, match="needs the mechanism"):
        CanaryProbe(train, (X, Y), claim=alone, method="clopper-pearson").run_once()
    assert calls == []
    with pytest.raises(RefusedError, match="no step of an Opacus DPOptimizer"):
        CanaryProbe(train, (X, Y), claim=CLAIM, scenario="gradient").run_once()
    with pytest.raises(InputError, match=r"training with canaries .* stopped with ValueError: no"):
        CanaryProbe(_fails, (X, Y), claim=CLAIM).run_once()


def _fails(dataset: Any, generator: Any) -> Any:
    raise ValueError("no")
