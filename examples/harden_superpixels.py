"""Why maps of superpixels are hardened as the few numbers that they are. Needs: pip install "safexplain[vision]"."""

import os

import torch
from sklearn.datasets import load_sample_image
from torch import nn

from safexplain import GaussianNoise, Hardening, superpixels
from safexplain.captum import FeatureAblation


def main() -> None:
    pixels = torch.from_numpy(load_sample_image("china.jpg")[::4, ::4].copy()).permute(2, 0, 1).float() / 255
    image = pixels[None, :, :104, :160]
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 5, stride=2), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).eval()

    mask = superpixels(image, n_segments=50)
    options = {"target": 3, "feature_mask": mask, "perturbations_per_eval": 16}
    print("superpixels:", int(mask.max()) + 1, "pixels:", mask.numel())

    native = FeatureAblation(model, hardening=Hardening.none()).attribute(image, **options)
    noise = Hardening(noise=GaussianNoise(0.01, key=os.urandom(32)))
    released = FeatureAblation(model, hardening=noise).attribute(image, **options)
    by_pixel = noise(native, inputs=image)

    def left(answer: torch.Tensor) -> float:
        """Noise that is left for a client who averages over each superpixel."""
        means = [(answer - native)[0, :, mask[0, 0] == k].mean() for k in mask.unique()]
        return torch.stack(means).pow(2).mean().sqrt().item()

    print(f"noise that is left of 0.01, hardened pixel by pixel: {left(by_pixel):.4f}")
    print(f"noise that is left of 0.01, hardened as superpixels: {left(released):.4f}")


if __name__ == "__main__":
    main()
