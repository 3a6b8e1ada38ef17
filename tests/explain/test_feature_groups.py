"""Maps of groups are hardened as the few numbers that they are, so that noise does not average away over a group."""

import pytest
import torch
from captum.attr import FeatureAblation, LayerFeatureAblation, Occlusion, Saliency
from explain_nets import KEY, NOISY, TwoInputs, image_net, images, quiet

from safexplain import HardenedOcclusion
from safexplain.errors import RefusedError
from safexplain.explain import harden
from safexplain.explain.feature_groups import Groups, find_groups, harden_groups
from safexplain.explain.hardened import HARDENED
from safexplain.hardening.clips import NormClip, TopKMask
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise

pytestmark = quiet
STEPS = Hardening(clip=NormClip(0.01), mask=TopKMask(0.5))
"""Clip and mask without noise: the same numbers whatever the query, other numbers for places than for groups."""
FEW = {
    "KernelShap": {"n_samples": 30},
    "Lime": {"n_samples": 30},
    "ShapleyValueSampling": {"n_samples": 3},
    "FeatureAblation": {},
    "FeaturePermutation": {},
}


class Recording(Hardening):
    """A hardening that remembers how it was called."""

    calls: list = []  # noqa: RUF012 - emptied by each test

    def __call__(self, attributions, **query):
        Recording.calls.append((attributions, query))
        return super().__call__(attributions, **query)


def shared_mask(batch=4, seed=3):
    """Seven groups of scattered pixels, the same in all channels and examples."""
    return torch.randint(7, (1, 1, 8, 8), generator=torch.Generator().manual_seed(seed))


def own_masks(batch=4, seed=4):
    """Groups of each example's own, in other numbers: 7, 6, 5, 4."""
    drawn = torch.randint(60, (batch, 1, 8, 8), generator=torch.Generator().manual_seed(seed))
    return torch.stack([mask % max(7 - i, 4) for i, mask in enumerate(drawn)])


def ask(explainer, *args, **options):
    torch.manual_seed(0)
    return explainer.attribute(*args, **options)


def slowly_hardened(native, mask, hardening, query):
    """Group by group and place by place: what the released map should be, for one tensor."""
    released = torch.empty_like(native)
    mask = mask.expand_as(native)
    for i in range(len(native)):
        places = [tuple(p) for p in torch.ones_like(native[i]).nonzero().tolist()]
        ids = []
        for place in places:
            if int(mask[i][place]) not in ids:
                ids.append(int(mask[i][place]))
        values = torch.zeros(1, len(ids), dtype=native.dtype)
        for place in places:
            values[0, ids.index(int(mask[i][place]))] = native[i][place]
        hardened = hardening(values, **one_row(query, i, len(native)))
        for place in places:
            released[i][place] = hardened[0, ids.index(int(mask[i][place]))]
    return released


def one_row(query, i, batch):
    """The query of one example."""
    if "inputs" not in query:
        return {}
    target = query["target"]
    if isinstance(target, torch.Tensor | list) and len(target) == batch:
        target = target[i : i + 1]
    return {**query, "inputs": tuple(x[i : i + 1] for x in query["inputs"]), "target": target}


def query_of_calls():
    """What the hardening was asked, put together from the calls for single examples or the one for the batch."""
    calls = [query for _, query in Recording.calls]
    inputs = tuple(torch.cat(parts) for parts in zip(*(query["inputs"] for query in calls), strict=True))
    targets = [one for query in calls for one in query["target"]]
    return {**calls[0], "inputs": inputs, "target": targets}


@pytest.fixture(autouse=True)
def forget_calls():
    Recording.calls.clear()


PAIRS = pytest.mark.parametrize(
    ("name", "make_mask"),
    [(name, (shared_mask, own_masks)[i % 2]) for i, name in enumerate(FEW)] + [("FeatureAblation", shared_mask)],
)
"""Each method under one mask, and one of them under both."""


@PAIRS
def test_the_few_numbers_are_hardened_and_written_back(name, make_mask):
    target = 1 if make_mask is shared_mask else torch.tensor([0, 1, 2, 3])
    model, x, mask = image_net(), images(), make_mask()
    kind = HARDENED[name]
    options = {"target": target, "feature_mask": mask, **FEW[name]}
    native = ask(kind(model, hardening=Hardening.none()), x, **options)
    assert torch.equal(ask(kind(model, hardening=STEPS), x, **options), slowly_hardened(native, mask, STEPS, {}))
    noisy = Recording(noise=GaussianNoise(0.05, key=KEY), clip=NormClip(0.01))
    released = ask(kind(model, hardening=noisy), x, **options)
    slow = slowly_hardened(native, mask, Hardening(noise=noisy.noise, clip=noisy.clip), query_of_calls())
    assert torch.equal(released, slow)
    assert (released - ask(kind(model, hardening=Hardening(clip=noisy.clip)), x, **options)).abs().max() > 0.02


@pytest.mark.parametrize(
    ("window", "stride"),
    [((3, 4, 4), (3, 2, 2)), ((3, 8, 8), None), ((1, 3, 5), (1, 3, 2))],
)
def test_occlusion_is_hardened_cell_by_cell(window, stride):
    model, x = image_net(), images(2)
    options = {"target": 1, "sliding_window_shapes": window, "strides": stride}
    native = Occlusion(model).attribute(x, **options)
    covers = covering_windows((3, 8, 8), window, stride or 1)
    names = {}
    mask = torch.tensor([names.setdefault(covers[place], len(names)) for place in sorted(covers)]).view(1, 3, 8, 8)
    released = HardenedOcclusion(model, hardening=STEPS).attribute(x, **options)
    assert torch.equal(released, slowly_hardened(native, mask, STEPS, {}))
    noisy = Recording(noise=GaussianNoise(0.05, key=KEY))
    released = HardenedOcclusion(model, hardening=noisy).attribute(x, **options)
    assert torch.equal(released, slowly_hardened(native, mask, Hardening(noise=noisy.noise), query_of_calls()))


def covering_windows(shape, window, stride):
    """Place -> the windows over it, by sliding Captum's window in plain loops."""
    strides = stride if isinstance(stride, tuple) else (stride,) * len(shape)
    starts = []
    for length, size, step in zip(shape, window, strides, strict=True):
        found, at = [0], 0
        while at + size < length:  # until a window reaches the end
            at += step
            found.append(at)
        starts.append(found)
    covers = {}
    for place in torch.ones(shape).nonzero().tolist():
        over = [[s for s in found if s <= p < s + size] for p, found, size in zip(place, starts, window, strict=True)]
        covers[tuple(place)] = tuple(tuple(o) for o in over)
    return covers


def test_windows_written_in_another_way_are_the_same_question():
    """Were they not, noise would average away over the spellings."""
    explainer = HardenedOcclusion(image_net(), hardening=NOISY)
    for window, strides in (((3, 4, 4), [None, 1, (1, 1, 1)]), ((3, 2, 2), [(2, 2, 2), 2])):
        answers = [
            explainer.attribute(images(2), target=1, sliding_window_shapes=window, strides=stride) for stride in strides
        ]
        assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_other_windows_with_the_same_cells_are_another_question():
    model, x, noises = image_net(), images(16), []
    for size in (2, 4):
        options = {"target": 1, "sliding_window_shapes": (3, size, size), "strides": (3, 2, 2)}
        native = Occlusion(model).attribute(x, **options)
        noises.append(
            (HardenedOcclusion(model, hardening=NOISY).attribute(x, **options) - native)[:, 0, ::2, ::2].flatten()
        )
    assert abs(torch.corrcoef(torch.stack(noises))[0, 1]) < 0.25


def test_places_of_two_inputs_are_never_in_one_cell():
    tensors = (torch.zeros(1, 2, 2), torch.zeros(1, 2))
    groups = find_groups({"sliding_window_shapes": ((1, 1), (1,))}, tensors)
    assert groups.canonical(tensors).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_a_layers_map_is_hardened_by_its_layer_mask():
    model, x = image_net(), images()
    mask = torch.randint(5, (1, 4, 4, 4), generator=torch.Generator().manual_seed(0))
    explainer = LayerFeatureAblation(model, model[3])
    native = explainer.attribute(x, target=1, layer_mask=mask)
    released = harden(explainer, STEPS).attribute(x, target=1, layer_mask=mask)
    assert torch.equal(released, slowly_hardened(native, mask, STEPS, {}))
    noise = harden(explainer, NOISY).attribute(x, target=1, layer_mask=mask) - native
    for example in noise:
        assert len(example.mul(1e5).round().unique()) == len(mask.unique())


@pytest.mark.parametrize("name", ["Lime", "FeaturePermutation"])
def test_groups_may_span_tensors(name):
    model, x = TwoInputs().eval(), (images(), torch.randn(4, 5, generator=torch.Generator().manual_seed(0)))
    masks = (torch.arange(64).view(1, 1, 8, 8) // 16, torch.tensor([[0, 1, 4, 4, 2]]))
    kind = HARDENED[name]
    options = {"target": 1, "feature_mask": masks, **FEW[name]}
    image, vector = ask(kind(model, hardening=NOISY), x, **options)
    native, _ = ask(kind(model, hardening=Hardening.none()), x, **options)
    for i in range(4):
        by_id = {}
        for tensor, mask in ((image[i], masks[0][0].expand(3, 8, 8)), (vector[i], masks[1][0])):
            for value, group in zip(tensor.flatten().tolist(), mask.flatten().tolist(), strict=True):
                by_id.setdefault(group, set()).add(value)
        assert sorted(by_id) == [0, 1, 2, 3, 4]
        assert all(len(values) == 1 for values in by_id.values())
        assert len(set(map(frozenset, by_id.values()))) == 5
    assert 0.02 < (image - native).std() < 0.1


@PAIRS
def test_the_same_partition_under_other_numbers_gives_the_same_noise(name, make_mask):
    model, x, mask = image_net(), images(), make_mask()
    kind = HARDENED[name]
    swapped = 6 - mask if name == "FeaturePermutation" else mask.clone()
    if name != "FeaturePermutation":
        swapped[mask == 0], swapped[mask == 1] = 1, 0

    def noise(own):
        options = {"target": 1, "feature_mask": own, **FEW[name]}
        return ask(kind(model, hardening=NOISY), x, **options) - ask(
            kind(model, hardening=Hardening.none()), x, **options
        )

    torch.testing.assert_close(noise(swapped), noise(mask), atol=1e-5, rtol=0)


def test_a_mask_with_fewer_axes_is_broadcast():
    groups = Groups((torch.tensor([[0, 0], [5, 5]]),)).canonical((torch.zeros(3, 2, 2, 2),))
    assert groups.tolist() == [[0, 0, 1, 1, 0, 0, 1, 1]]


def test_a_map_that_is_not_constant_on_the_groups_is_refused():
    class Uneven(FeatureAblation):
        def attribute(self, inputs, target=None, feature_mask=None):
            return Saliency(self.forward_func).attribute(inputs, target=target)

    explainer = Uneven(image_net())
    with pytest.raises(RefusedError, match="one value for each group"):
        harden(explainer, NOISY).attribute(images(), target=1, feature_mask=shared_mask())
    each = torch.arange(192).view(1, 3, 8, 8)
    assert harden(explainer, NOISY).attribute(images(), target=1, feature_mask=each).shape == (4, 3, 8, 8)
    assert harden(explainer, NOISY).attribute(images(), target=1).shape == (4, 3, 8, 8)


def test_one_place_that_differs_is_enough():
    groups = torch.tensor([[0, 0, 1, 1]])
    good = (torch.tensor([[2.0, 2.0, 3.0, 3.0]]),)
    assert torch.equal(harden_groups(good, groups, lambda values, rows: -values)[0], -good[0])
    for far in (1.0, 1e-3):
        bad = (torch.tensor([[2.0, 2.0, 3.0, 3.0 + far]]),)
        with pytest.raises(RefusedError, match="one value for each group"):
            harden_groups(bad, groups, lambda values, rows: values)
    for hidden in (torch.nan, torch.inf):  # what is no number does not make others look small
        bad = (torch.tensor([[hidden, hidden, 1e-6, 2e-6]]),)
        with pytest.raises(RefusedError, match="one value for each group"):
            harden_groups(bad, groups, lambda values, rows: values)
    rounded = (torch.tensor([[2.0, 2.0, 3.0, 3.0 + 1e-6]]),)  # sums of windows in another order
    assert harden_groups(rounded, groups, lambda values, rows: values)[0].tolist() == [[2.0, 2.0, 3.0, 3.0]]
