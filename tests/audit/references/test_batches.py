"""Batches: drawn and moved an epoch at a time, and bit for bit those that a slow loop draws one by one."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from safexplain.audit import Recipe
from safexplain.audit.references import recipe as batches
from safexplain.audit.references.recipe import Batches, padding
from safexplain.audit.references.shadows import train_one
from safexplain.errors import InputError

CPU = torch.device("cpu")
KINDS = ("none", "flip", "crop-flip")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(n=50, c=2, h=8, w=6, seed=0):
    g = seeded(seed)
    return torch.randn(n, c, h, w, generator=g), torch.randint(0, 3, (n,), generator=g)


def network(seed=0, dropout=0.3):
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        *(nn.Dropout(dropout), nn.Linear(24, 3)),
    )


def state(model):
    return torch.cat([t.detach().flatten().double() for t in model.state_dict().values()])


def slowly_cropped(x, rows, columns, mirrored):
    pad, (_, _, h, w) = padding(x), x.shape
    found = []
    for image, row, column, mirror in zip(F.pad(x, (pad,) * 4, mode="reflect"), rows, columns, mirrored, strict=True):
        crop = image[:, row : row + h, column : column + w]
        found.append(crop.flip(2) if mirror else crop)
    return torch.stack(found).contiguous(memory_format=torch.channels_last)


def slowly_augmented(x, kind, generator):
    if kind == "crop-flip":
        most = 2 * padding(x) + 1
        rows, columns = (torch.randint(0, most, (len(x),), generator=generator) for _ in range(2))
        return slowly_cropped(x, rows, columns, torch.rand(len(x), generator=generator) < 0.5)
    if kind == "flip":
        mirrored = torch.rand(len(x), generator=generator) < 0.5
        return torch.stack([image.flip(2) if m else image for image, m in zip(x, mirrored, strict=True)])
    return x


def slowly_trained(recipe, model, x, y, generator):
    """A batch at a time: its order and its augmentation are drawn when it is its turn."""
    with torch.random.fork_rng([]):
        torch.manual_seed(generator.initial_seed())
        model.train()
        parameters = list(model.parameters())
        optimizer = recipe.make_optimizer(parameters)
        schedule = recipe.make_schedule(optimizer, recipe.steps_per_epoch(len(y)) * recipe.epochs)
        for _ in range(recipe.epochs):
            for index in torch.randperm(len(y), generator=generator).split(recipe.batch_sizes(len(y))):
                loss = F.cross_entropy(model(slowly_augmented(x[index], recipe.augmentation, generator)), y[index])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
    return model.eval()


@pytest.mark.parametrize(("kind", "optimizer"), [*zip(KINDS, ("adam", "adamw", "sgd"), strict=True)])
def test_training_is_bit_for_bit_that_of_the_slow_loop(kind, optimizer):
    x, y = pictures(49)
    recipe = Recipe(optimizer=optimizer, lr=0.01, epochs=3, batch_size=16, schedule="cosine", augmentation=kind)
    ours, theirs = seeded(3), seeded(3)
    fast = train_one(recipe, network(), x, y, ours)
    slow = slowly_trained(recipe, network(), x, y, theirs)
    assert torch.equal(state(fast), state(slow))
    assert torch.equal(ours.get_state(), theirs.get_state())
    assert not torch.equal(state(fast), state(slowly_trained(recipe, network(), x, y, seeded(4))))


@pytest.mark.parametrize("kind", ["none", "crop-flip"])
def test_what_does_not_fit_on_the_device_is_copied_batch_by_batch_and_trains_the_same(kind, monkeypatch):
    x, y = pictures(40)
    recipe = Recipe(epochs=2, batch_size=16, augmentation=kind)
    near = train_one(recipe, network(), x, y, seeded())
    copied = []
    monkeypatch.setattr(batches, "fits", lambda *_: False)
    monkeypatch.setattr(batches, "moved", lambda t, device: copied.append(t.shape) or t.to(device))
    far = train_one(recipe, network(), x, y, seeded())
    assert torch.equal(state(near), state(far))
    images = [shape for shape in copied if len(shape) == 4]
    assert [shape[0] for shape in images] == [16, 16, 8] * 2
    assert len(copied) == len(images) + recipe.epochs  # one copy of all random numbers an epoch


def test_data_goes_to_a_gpu_where_it_takes_at_most_a_third_of_what_is_free_there(monkeypatch):
    x, _ = pictures(48)
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 * x.nbytes)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * x.nbytes)  # what is reserved is free, too
    for free, expected in ((2 * x.nbytes, True), (2 * x.nbytes - 4, False), (0, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10**12))
        assert batches.fits(x, gpu) is expected
    assert batches.fits(x, CPU)


def test_augmentation_is_for_images_and_crops_for_images_that_can_be_padded():
    def made(shape, kind, **options):
        return Batches(torch.zeros(shape), torch.zeros(3), [3], kind, CPU, seeded(), **options)

    for kind in ("flip", "crop-flip"):
        with pytest.raises(InputError, match=rf"augmentation '{kind}': expected images .* got \(3, 5\)"):
            made((3, 5), kind)
    with pytest.raises(InputError, match=r"channels_last: expected images .* got \(3, 5\)"):
        made((3, 5), "none", channels_last=True)
    with pytest.raises(InputError, match="images of 40 x 4 pixels are too small"):
        made((3, 1, 40, 4), "crop-flip")
