"""Image classifiers saved by `transformers`: nothing is downloaded, no code of the folder runs and no pickle is read.

Attention uses plain operations ("eager"), through which gradients, per example too, reach the input.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import weight_files
from safexplain.errors import InputError
from safexplain.loading.data import AuditData
from safexplain.loading.files import as_input_error, read_bytes, require, seeded, without_logs, without_prefix
from safexplain.outputs import Logits

_CONFIG = "config.json"
_PREPROCESSOR = "preprocessor_config.json"


@dataclass(frozen=True)
class Preprocessing:
    """Normalisation of 8-bit images in `preprocessor_config.json`: (x / 255 - mean) / std, for each channel; `size` is
    (height, width) of the input, None: not stated."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int] | None = None

    @classmethod
    def read(cls, folder: Path) -> Preprocessing | None:
        """Read it from a folder; None: there is none; InputError: damaged or invalid."""
        path = folder / _PREPROCESSOR
        if not path.is_file():
            return None
        stated = _read_json(path)
        mean, std = stated.get("image_mean"), stated.get("image_std")
        if not stated.get("do_normalize", True) or mean is None or std is None:
            mean, std = 0.0, 1.0
        with as_input_error(f"{path}: expected image_mean and image_std, a number for each channel; got {mean}, {std}"):
            scale = 1.0 if stated.get("do_rescale", True) else 255.0
            means, stds = (np.atleast_1d(np.asarray(v, np.float64)) / scale for v in (mean, std))
            valid = means.shape == stds.shape and means.ndim == 1 and np.isfinite(means * stds).all()
            if not valid or stds.min() <= 0:
                raise ValueError("standard deviations must be positive, and as many as means")
        size = _size(stated.get("crop_size" if stated.get("do_center_crop") else "size"))
        return cls(tuple(means.tolist()), tuple(stds.tolist()), size)

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Normalise images (n, channels, height, width) in [0, 1]; InputError: another number of channels."""
        if len(self.mean) not in (1, x.shape[1]):
            raise InputError(
                f"x: expected images of {len(self.mean)} channels, which {_PREPROCESSOR} normalises, got {x.shape[1]}"
            )
        mean, std = (np.array(v, np.float32).reshape(1, -1, 1, 1) for v in (self.mean, self.std))
        return np.ascontiguousarray((x - mean) / std, dtype=np.float32)

    def mismatch(self, x: NDArray[np.float32]) -> str:
        """Evidence that images (n, channels, height, width) are not normalised in this way, as the end of a sentence,
        or "": they exceed the range, or none is below zero, where dark pixels would be."""
        if len(self.mean) not in (1, x.shape[1]) or not x.size:
            return ""
        low, high = ((v - np.array(self.mean)) / np.array(self.std) for v in (0.0, 1.0))
        least, most, off = x.min((0, 2, 3)), x.max((0, 2, 3)), 0.02 * (high - low)
        inside = (least >= low - off).all() and (most <= high + off).all()
        if inside and not float(low.max()) < 0 <= float(least.min()):
            return ""
        given = f"they range from {float(least.min()):.4g} to {float(most.max()):.4g}"
        return f"{given}, but normalised images from {float(low.min()):.2f} to {float(high.max()):.2f}"


@dataclass(frozen=True)
class Network:
    """Builds image classifiers from the configuration in a folder: `Network.of(folder)(seed)`.

    `config` is the library's configuration, `base` a folder of pre-trained weights to start from; None: new weights.
    """

    folder: str
    config: Any = field(repr=False)
    base: str | None = None

    @classmethod
    def of(cls, folder: str | Path, *, num_classes: int | None = None, channels: int | None = None) -> Network:
        """Read a folder with config.json; `num_classes` and `channels` replace those stated there. InputError: it is
        not of an image classifier of the library itself."""
        library = require("transformers", "transformers")
        stated = _read_json(Path(folder) / _CONFIG)
        if stated.get("model_type") == "timm_wrapper" or _names_backbone(stated):
            raise InputError(
                f"{folder} names a network that would be downloaded; pass its weights with --arch timm:NAME"
            )
        with _library_errors(f"{folder}/{_CONFIG} is not an image classifier of transformers {library.__version__}"):
            config = library.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            if type(config) not in library.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
                raise ValueError(f"expected one such as vit, resnet or convnext, got {config.model_type}")
            kinds = library.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING[type(config)]
            names = [kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
            if config.architectures and not {*names} & {*config.architectures}:
                raise ValueError(f"expected {' or '.join(names)}, which scores classes, got {config.architectures}")
        vars(config).pop("quantization_config", None)  # weights become float32
        config._attn_implementation = "eager"  # no kernel is downloaded
        if num_classes is not None:
            config.num_labels = num_classes
        if channels is not None and hasattr(config, "num_channels"):
            config.num_channels = channels
        return cls(str(folder), config)

    def starting_from(self, base: str | Path) -> Network:
        """The same networks, starting from the weights in another folder; a head of another size is drawn anew."""
        started = replace(self, base=str(base))
        started(0)
        return started

    def with_classes_of(self, state: Mapping[str, Tensor]) -> Network:
        """The same with the number of classes of these weights."""
        own, labels = self._new().state_dict(), self.config.num_labels
        state = without_prefix(state, set(own))
        heads = [n for n, tensor in own.items() if n in state and tensor.shape[:1] == (labels,) != state[n].shape[:1]]
        sizes = {int(state[name].shape[0]) for name in heads if own[name].shape[1:] == state[name].shape[1:]}
        return self if len(sizes) != 1 else Network.of(self.folder, num_classes=sizes.pop())

    def __call__(self, seed: int) -> Logits:
        """A network in training mode, with new weights drawn from the seed."""
        with seeded(seed):
            network = Logits(self._new()) if self.base is None else self.load(None, self.base, new_head=True)
        return network.train()

    def _new(self) -> nn.Module:
        auto = require("transformers", "transformers").AutoModelForImageClassification
        with _library_errors(f"{self.folder} cannot be built; see its {_CONFIG}"):
            network: nn.Module = auto.from_config(self.config, dtype=torch.float32, trust_remote_code=False)
        return network

    def load(
        self, state: Mapping[str, Tensor] | None, where: str, *, new_head: bool = False, trust_pickle: bool = False
    ) -> Logits:
        """The network with these weights, which must be complete; None: those in the folder `where`. `new_head` draws a
        last layer of another size anew. InputError: they do not fit, are damaged, or are an untrusted pickle."""
        pickled = False
        if state is None:
            files = weight_files(Path(where))
            if not files:
                raise InputError(f"{where} holds no model.safetensors; save the model with save_pretrained")
            pickled = files[0].suffix == ".bin"
            if pickled and not trust_pickle:
                raise InputError(
                    f"{files[0]} is a pickle, and loading a pickle can run any code; save the model as safetensors"
                    " (as save_pretrained does), or pass --trust-pickle if you trust the author of the file"
                )
        new = self._new()
        kind: Any = type(new)
        what = f"the weights in {where} do not fit {kind.__name__} with the {_CONFIG} of {self.folder}"
        with _library_errors(f"{what}, or the file is damaged"):
            network, told = kind.from_pretrained(
                where if state is None else None,
                config=self.config,
                state_dict=None if state is None else without_prefix(state, set(new.state_dict())),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=not pickled,
                weights_only=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                attn_implementation="eager",
                dtype=torch.float32,
            )
        mismatched = {name if isinstance(name, str) else name[0] for name in told["mismatched_keys"]}
        missing = sorted({*told["missing_keys"], *mismatched})
        wrong = [name for name in missing if not new_head or name.startswith(f"{kind.base_model_prefix}.")]
        extra = [] if new_head else sorted(told["unexpected_keys"])
        if wrong or extra:
            raise InputError(
                f"{what}: {len(wrong)} are missing or of another shape, and {len(extra)} are not part of it, such as"
                f" {(wrong + extra)[0]}; pass the folder that they were saved in"
            )
        return Logits(network)


def normalise_as_trained(data: AuditData, preprocessing: Preprocessing | None) -> tuple[AuditData, tuple[str, ...]]:
    """The data, with 8-bit images normalised as the model's folder states, and notes on that, or on signs that it is
    missing. InputError: another number of channels."""
    if preprocessing is None or data.x.ndim != 4:
        return data, ()
    mean, std = (", ".join(f"{v:.4g}" for v in values) for values in (preprocessing.mean, preprocessing.std))
    notes, how = [], f"normalised as stated in {_PREPROCESSOR} (mean {mean}, standard deviation {std})"
    if preprocessing.size is not None and data.x.shape[2:] != preprocessing.size:
        stated, came = (" x ".join(map(str, size)) for size in (preprocessing.size, data.x.shape[2:]))
        notes.append(f"{_PREPROCESSOR} resizes images to {stated}, but those in {data.source} are {came}.")
    if data.scaled:
        data = replace(data, x=preprocessing(data.x), scaled=False)
        notes.append(f"8-bit images were {how}.")
    elif mismatch := preprocessing.mismatch(data.x):
        notes.append(f"The numbers in {data.source} are not {how}: {mismatch}.")
    return data, tuple(notes)


def is_transformers_folder(path: str | Path) -> bool:
    """Whether `save_pretrained` wrote this folder."""
    return (Path(path) / _CONFIG).is_file()


def _read_json(path: Path) -> dict[str, Any]:
    with as_input_error(f"{path} is not a configuration in JSON", "; save the model again"):
        return dict(json.loads(read_bytes(path, "configuration")))


def _names_backbone(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    fetched = any(value.get(name) for name in ("backbone", "use_timm_backbone", "use_pretrained_backbone"))
    return fetched or any(map(_names_backbone, value.values()))


def _size(stated: Any) -> tuple[int, int] | None:
    high, wide = (stated.get("height"), stated.get("width")) if isinstance(stated, dict) else (stated, stated)
    return (high, wide) if isinstance(high, int) and isinstance(wide, int) else None


@contextmanager
def _library_errors(what: str) -> Iterator[None]:
    """`as_input_error` without the library's advice on new heads."""
    with without_logs(logging.WARNING), warnings.catch_warnings(action="ignore"), as_input_error(what):
        yield
