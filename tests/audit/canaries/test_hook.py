"""A gradient canary in a loop of one's own: it takes the target's place exactly, or the audit stops with a reason."""

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from safexplain.audit.canaries.trainer import GradientHook, NeighbouringData, records
from safexplain.dp import DPFineTuner
from safexplain.dp.sgd.clipping import FlatClipping
from safexplain.dp.sgd.steps import ClippedOptimizer
from safexplain.errors import InputError, RefusedError

N, D, C = 12, 3, 0.5
TARGET, COORDINATE = 4, 2

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Full backward hook", "ignore:delta")


def data():
    g = torch.Generator().manual_seed(0)
    return records((torch.randn(N, D, generator=g), torch.arange(N) % 2))


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 2))


def epoch(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def opacus(dataset, *, poisson=False, mode="hooks", shuffle=False, batch=N, largest=None, epochs=2, epoch=epoch):
    model = network()
    made = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=C,
        data_loader=DataLoader(dataset, batch_size=batch, shuffle=shuffle), poisson_sampling=poisson,
        grad_sample_mode=mode, criterion=nn.CrossEntropyLoss(),
    )  # fmt: skip
    model, optimizer, loader = made[0], made[1], made[-1]
    for _ in range(epochs):
        if largest:
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=largest, optimizer=optimizer) as parts:
                epoch(model, optimizer, parts)
        else:
            epoch(model, optimizer, loader)
        with torch.no_grad():  # an evaluation between two epochs
            for x, _ in DataLoader(dataset, batch_size=5):
                model(x)
    return model


def tuned(dataset, mode="hooks"):
    return DPFineTuner(
        network(), dataset, epsilon=None, noise_multiplier=1.0, delta=1e-3, steps=4, batch_size=6, mode=mode, piece=4,
        clipping=FlatClipping(C), optimizer="sgd", seed=2, device="cpu",
    ).fit().model  # fmt: skip


class Augmented(Dataset):
    """Asks for one record at a time."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, i):
        x, y = self.inner[i]
        return x + 1.0, y


LOOPS = {
    "opacus": opacus,
    "opacus, poisson": lambda d: opacus(d, poisson=True, batch=4, epochs=3),
    "opacus, shuffled": lambda d: opacus(d, shuffle=True, batch=5),
    "opacus, pieces": lambda d: opacus(d, poisson=True, batch=6, largest=2),
    "opacus, augmented": lambda d: opacus(Augmented(d), shuffle=True, batch=5),
    "DPFineTuner": tuned,
}


def sums_of(monkeypatch, loop, hook, dataset=None):
    """Flat sums of clipped gradients, as the optimizer of the loop has them before each step's noise: (steps, P)."""
    sums = []
    with monkeypatch.context() as patch:
        for kind in (DPOptimizer, ClippedOptimizer):

            def add_noise(self, _original=kind.add_noise):
                sums.append(torch.cat([p.summed_grad.flatten() for p in self.params]).clone())
                _original(self)

            patch.setattr(kind, "add_noise", add_noise)
        with hook.watching():
            loop(NeighbouringData(data(), fetched=hook.fetched) if dataset is None else dataset)
    return torch.stack(sums)


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_the_targets_gradient_becomes_c_at_one_coordinate_and_nothing_elsewhere(monkeypatch, loop):
    without, plus, minus = (sums_of(monkeypatch, loop, GradientHook(TARGET, COORDINATE, s)) for s in (0.0, 1.0, -1.0))
    first = int((plus != without).any(dim=1).nonzero()[0])  # the first batch that has the target: equal before
    assert not (minus[:first] != without[:first]).any()
    expected = torch.zeros_like(without[0])
    expected[COORDINATE] = C
    torch.testing.assert_close(plus[first] - without[first], expected, atol=2e-6, rtol=0)
    torch.testing.assert_close(minus[first] - without[first], -expected, atol=2e-6, rtol=0)


def test_the_row_is_the_targets(monkeypatch):
    """Its gradient left out gives what a training without the record gives: no other row was touched."""
    others = [i for i in range(N) if i != TARGET]
    zeroed = sums_of(monkeypatch, opacus, GradientHook(TARGET, COORDINATE, 0.0))
    hook = GradientHook(TARGET, COORDINATE)
    rest = Subset(NeighbouringData(data(), fetched=hook.fetched), others)
    left_out = sums_of(monkeypatch, lambda d: opacus(d, batch=N - 1), hook, rest)
    torch.testing.assert_close(zeroed[0], left_out[0])
    wrong = sums_of(monkeypatch, opacus, GradientHook(TARGET + 1, COORDINATE, 0.0))
    assert not torch.allclose(wrong[0], left_out[0], atol=1e-3)


def test_everything_is_as_it_was_afterwards_also_after_an_error():
    init, clip = DPOptimizer.__init__, DPOptimizer.clip_and_accumulate
    hook = GradientHook(TARGET, COORDINATE)

    def stops(dataset):
        opacus(dataset)
        raise KeyError("stop")

    with pytest.raises(KeyError), hook.watching():
        stops(NeighbouringData(data(), fetched=hook.fetched))
    assert DPOptimizer.__init__ is init
    assert DPOptimizer.clip_and_accumulate is clip
    assert not {"clip_and_accumulate", "add_noise"} & set(vars(hook.optimizer))


def test_a_reference_trains_without_noise_and_knows_how_far_each_parameter_moved():
    hook, start = GradientHook(TARGET), network()
    seen = []

    def loop(dataset):
        model = tuned(dataset)
        seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]))

    with hook.watching():
        loop(NeighbouringData(data(), fetched=hook.fetched))
    begins = torch.cat([p.detach().flatten() for p in start.parameters()])
    assert (hook.movement >= (seen[0] - begins).abs() - 1e-6).all()
    assert float(hook.movement.max()) < 0.1 * C * 6 * 2, "noise of the given multiplier moves further"
    torch.testing.assert_close(hook.moved.float(), seen[0] - begins, atol=1e-6, rtol=0)
    assert hook.optimizer.noise_multiplier == 1.0


def copied(dataset):
    """Reads all records once, and draws batches from the copy."""
    x, y = (torch.stack(part) for part in zip(*[dataset[i] for i in range(len(dataset))], strict=True))
    return opacus(dataset, epochs=1, epoch=lambda model, optimizer, _: epoch(model, optimizer, [(x[:6], y[:6])]))


def prefetched(dataset):
    """Has the next batch before it takes the step of this one."""

    def ahead(model, optimizer, loader):
        batches = iter(loader)
        following = next(batches)
        for after in [*batches, None]:
            batch, following = following, after
            epoch(model, optimizer, [batch])

    return opacus(dataset, batch=4, epoch=ahead)


def ghost(dataset):
    return opacus(dataset, mode="ghost")


def twice(dataset):
    opacus(dataset, epochs=1)
    return opacus(dataset, epochs=1)


STOPPED = {
    "a copy": (copied, "gradients of the (0|12) records fetched"),
    "prefetching": (prefetched, "no prefetching"),
    "ghost clipping of Opacus": (ghost, 'mode="hooks"'),
    "ghost clipping of DPFineTuner": (lambda d: tuned(d, "ghost"), 'mode="hooks"'),
    "two optimizers": (twice, "expected one DPOptimizer, got several"),
    "no optimizer": (lambda d: network(), "expected steps of an Opacus DPOptimizer, observed none"),
}


@pytest.mark.parametrize(("loop", "reason"), STOPPED.values(), ids=STOPPED)
def test_a_loop_in_which_the_row_cannot_be_told_is_refused(loop, reason):
    hook = GradientHook(TARGET, COORDINATE)
    with pytest.raises(RefusedError, match=reason), hook.watching():
        loop(NeighbouringData(data(), fetched=hook.fetched))


def test_a_coordinate_that_is_not_there_is_refused():
    hook = GradientHook(TARGET, 10_000)
    with pytest.raises(InputError, match="the optimizer holds 26 parameters"), hook.watching():
        opacus(NeighbouringData(data(), fetched=hook.fetched))
