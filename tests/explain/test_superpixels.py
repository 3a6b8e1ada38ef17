"""Superpixels are scikit-image's, for every image; squares are squares."""

import sys

import numpy as np
import pytest
import torch
from matplotlib import colors
from matplotlib.figure import Figure

from safexplain import superpixels
from safexplain.errors import InputError, MissingExtraError
from safexplain.explain import grid_segments, show_set

segmentation = pytest.importorskip("skimage.segmentation")


def pictures(batch=3, channels=3, size=24, seed=0):
    """Smooth images with some noise, in [0, 1], the first pixel black and the last white."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(batch, channels, 4, 4, generator=generator)
    images = torch.nn.functional.interpolate(coarse, (size, size), mode="bilinear").mul(0.8).add(0.1)
    images += torch.randn(images.shape, generator=generator) * 0.01
    images[:, :, 0, 0], images[:, :, -1, -1] = 0.0, 1.0
    return images.double()


def direct(image, **options):
    """scikit-image's own answer for one image (channels, height, width)."""
    pixels = image.movedim(0, -1).numpy()
    colour = pixels.shape[-1] == 3
    return segmentation.slic(
        pixels if colour else pixels[..., 0], start_label=0, channel_axis=-1 if colour else None, **options
    )


@pytest.mark.parametrize(("channels", "n_segments", "compactness"), [(3, 50, 10.0), (1, 12, 0.1)])
def test_the_segments_are_scikit_images(channels, n_segments, compactness):
    images = pictures(channels=channels)
    options = {"n_segments": n_segments, "compactness": compactness}
    masks = superpixels(images, **options)
    assert masks.shape == (3, 1, 24, 24)
    assert masks.dtype == torch.int64
    for image, mask in zip(images, masks, strict=True):
        assert np.array_equal(mask[0].numpy(), direct(image, **options))
        assert mask.min() == 0
        assert 1 < len(mask.unique()) <= 4 * n_segments


@pytest.mark.parametrize(("scale", "shift"), [(255.0, 0.0), (1e-3, 5.0)])
def test_the_scale_of_an_image_does_not_matter(scale, shift):
    images = pictures()
    torch.testing.assert_close(superpixels(images * scale + shift, 12, 1.0), superpixels(images, 12, 1.0))


def test_an_image_in_which_slic_finds_a_single_segment_gets_squares(monkeypatch):
    monkeypatch.setattr(segmentation, "slic", lambda pixels, **_: np.zeros(pixels.shape[:2], int))
    mask = superpixels(pictures(2), n_segments=9)
    assert torch.equal(mask, grid_segments(pictures(1), 3).expand(2, 1, 24, 24))


def test_not_a_number_and_infinity_are_taken_as_zero():
    images = pictures(2)
    broken = images.clone()
    images[0, :, 3, 4], images[0, :, 7, 7] = 0.0, 0.0
    broken[0, :, 3, 4], broken[0, :, 7, 7] = float("nan"), float("inf")
    assert torch.equal(superpixels(broken, 12, 1.0), superpixels(images, 12, 1.0))
    nothing = torch.full((1, 3, 16, 16), float("nan"))
    assert len(superpixels(nothing, 2).unique()) >= 2


def test_what_is_no_batch_of_images_is_refused():
    for shape in ((3, 16, 16), (2, 4, 16, 16)):
        with pytest.raises(InputError, match=r"batch, 1 or 3, height, width"):
            superpixels(torch.zeros(shape))
    with pytest.raises(InputError, match="n_segments=1"):
        superpixels(pictures(1), n_segments=1)


def test_without_scikit_image_the_extra_is_named(monkeypatch):
    for name in [m for m in sys.modules if m.partition(".")[0] == "skimage"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(MissingExtraError, match=r"safexplain\[vision\]"):
        superpixels(pictures(1))
    assert torch.equal(grid_segments(pictures(1)), grid_segments(pictures(1), 8))


def test_a_grid_cuts_each_axis_into_pieces_of_about_the_same_length():
    mask = grid_segments(torch.empty(2, 3, 5, 3), 2)
    assert mask.tolist() == [[[[0, 0, 1]] * 3 + [[2, 2, 3]] * 2]]
    assert grid_segments(torch.empty(2, 3, 7), 3).tolist() == [[[0, 0, 0, 1, 1, 2, 2]]]
    assert grid_segments(torch.empty(2, 3, 2, 1, 2), 5).tolist() == [[[[[0, 1]], [[2, 3]]]]]


def test_a_grid_of_nothing_is_refused():
    for shape, side in (((4, 3), 2), ((2, 3, 8, 8), 0)):
        with pytest.raises(InputError, match="side >= 1"):
            grid_segments(torch.zeros(shape), side)


ORANGE = colors.to_rgb("tab:orange")


def drawn(*args, **more):
    return show_set(*args, Figure().subplots(), **more).images[0].get_array()


def test_named_pixels_are_in_colour_and_all_others_in_grey():
    image, released = torch.rand(3, 8, 8), torch.zeros(3, 8, 8)
    image[:, 0, 0], image[:, 7, 7] = 0, 1
    released[1, 2, 3] = released[:, 4, 4] = 1  # one channel, and all
    found, grey = drawn(image, released), image.mean(0)
    for i in range(8):
        for j in range(8):
            expected = ORANGE if (i, j) in ((2, 3), (4, 4)) else (grey[i, j],) * 3
            np.testing.assert_allclose(found[i, j], expected, atol=1e-6)


def test_images_are_taken_on_any_scale_as_arrays_and_without_channels():
    image, released = np.random.default_rng(0).random((6, 5)), np.zeros((6, 5))
    released[0, 0] = 1
    found = drawn(image, released, color="blue")
    np.testing.assert_allclose(drawn(255 * image[None] - 9, released[None], color="blue"), found)
    assert found[0, 0].tolist() == [0, 0, 1]
    np.testing.assert_array_equal(drawn(np.full((1, 6, 5), 3.0), np.zeros((6, 5))), np.zeros((6, 5, 3)))


def test_stronger_pixels_of_an_ordered_set_have_more_colour():
    released = torch.zeros(4, 4)
    released[0, :2] = torch.tensor([2.0, 1.0])
    found = drawn(torch.zeros(1, 4, 4), released)
    np.testing.assert_allclose(found[0, :2], [ORANGE, np.divide(ORANGE, 2)])


OTHER_SHAPES = [
    ((2, 3, 8, 8), (3, 8, 8), "expected one image"),
    ((3, 8, 8), (8,), "got .3, 8, 8. and .8,."),
]


def test_other_shapes_are_refused():
    for image, released, said in OTHER_SHAPES:
        with pytest.raises(InputError, match=said):
            drawn(torch.zeros(image), torch.zeros(released))


def test_what_is_no_set_is_refused():
    with pytest.raises(InputError, match="expected a set"):
        drawn(torch.zeros(4, 4), torch.full((4, 4), -0.5))
