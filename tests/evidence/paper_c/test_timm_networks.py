"""audit/shared/timm_networks.py and the features that paper C's suite takes from them: weights given by path."""

import numpy as np
import pytest
import torch

pytest.importorskip("timm")
pytest.importorskip("safetensors")

import timm
from safetensors.torch import save_file

from audit.shared.timm_networks import backbone

ARCH = "test_vit"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Weights of a tiny transformer in two formats, with a classifier of 7 classes, and images that look like CIFAR-10.

    The transformer itself lies there, too, as `net`.
    """
    made = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    net = timm.create_model(ARCH, num_classes=7).eval()
    torch.save({"state_dict": net.state_dict()}, made / "net.pth")
    save_file(net.state_dict(), made / "net.safetensors")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (400, 32, 32, 3), dtype=np.uint8), np.arange(400, dtype=np.uint8) % 10
    np.savez(made / "cifar10.npz", x_train=x, y_train=y)
    return made


@pytest.mark.parametrize("file", ["net.pth", "net.safetensors"])
def test_features_are_those_of_the_network_in_the_file_on_normalised_images(folder, file):
    ours, about = backbone(ARCH, folder / file, 10)
    torch.manual_seed(0)
    net = timm.create_model(ARCH, num_classes=7).eval()
    x = torch.rand(3, 3, *ours.size)
    normalised = (x - torch.tensor(net.pretrained_cfg["mean"])[:, None, None]) / torch.tensor(
        net.pretrained_cfg["std"]
    )[:, None, None]
    with torch.no_grad():
        expected = net.forward_head(net.forward_features(normalised), pre_logits=True)
        assert torch.allclose(ours(x), ours.head(expected), atol=1e-5)
        assert ours(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert about["arch"] == ARCH
    assert about["file"] == file
    assert len(about["sha256"]) == 64
