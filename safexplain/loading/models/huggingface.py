"""Image classifiers as `transformers` saves them: a folder with config.json, weights and preprocessor_config.json.

Nothing is downloaded and no code of the folder is run. Its configuration chooses one of the library's own classes, and
the weights are read here and handed to the library's loader, which knows how older files name them. Attention is
computed by plain operations ("eager"), through which every explainer and per-example gradients reach the input.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
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

from safexplain._digest import sha256, weight_files
from safexplain.errors import InputError
from safexplain.loading.data.checks import AuditData
from safexplain.loading.files import one_line, read_bytes, require
from safexplain.loading.models.weights import seeded
from safexplain.outputs import Logits

__all__ = ["Network", "Preprocessing", "as_the_model_takes", "is_folder", "read_weights"]

_CONFIG = "config.json"
_PREPROCESSOR = "preprocessor_config.json"

_LEFT_OUT = frozenset(
    {"auto_map", "dtype", "torch_dtype", "attn_implementation", "_attn_implementation", "quantization_config"}
)
"""Of a configuration: names of code, of kernels to download and of number formats. Weights become float32."""


@dataclass(frozen=True)
class Preprocessing:
    """What a folder's `preprocessor_config.json` does to an image of 8 bits: (x / 255 - mean) / std.

    Args:
        mean: of each channel, of values in [0, 1].
        std: likewise.
        size: height and width of the network's input; None: not stated.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int] | None = None

    @classmethod
    def read(cls, folder: Path) -> Preprocessing | None:
        """Of a folder; None where it states none.

        Raises:
            InputError: the file is damaged, or a mean or a standard deviation is none.
        """
        path = folder / _PREPROCESSOR
        if not path.is_file():
            return None
        stated = _read_json(path)
        scales, normalises = stated.get("do_rescale", True), stated.get("do_normalize", True)
        mean, std = stated.get("image_mean"), stated.get("image_std")
        if not normalises or mean is None or std is None:
            mean, std = [0.0], [1.0]
        if not scales:
            mean, std = [m / 255 for m in _numbers(mean, path)], [s / 255 for s in _numbers(std, path)]
        means, stds = _numbers(mean, path), _numbers(std, path)
        if len(means) != len(stds) or min(stds) <= 0:
            raise InputError(f"{path}: expected image_mean and image_std > 0, one each a channel; got {mean}, {std}")
        return cls(means, stds, _size(stated.get("crop_size" if stated.get("do_center_crop") else "size")))

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Normalise images.

        Args:
            x: (n, channels, height, width) in [0, 1].

        Raises:
            InputError: another number of channels.
        """
        self._check(x)
        mean, std = (np.array(v, np.float32).reshape(1, -1, 1, 1) for v in (self.mean, self.std))
        return np.ascontiguousarray((x - mean) / std, dtype=np.float32)

    def unlike(self, x: NDArray[np.float32]) -> str:
        """What shows that images were not normalised so: "" or the end of a sentence about them.

        Images of 8 bits lie in a known range when they are normalised. Values beyond it, or none below zero where dark
        pixels would be, show something else.

        Args:
            x: (n, channels, height, width).
        """
        if x.ndim != 4 or len(self.mean) not in (1, x.shape[1]) or not x.size:
            return ""
        low, high = ((v - np.array(self.mean)) / np.array(self.std) for v in (0.0, 1.0))
        axes = (0, 2, 3)
        least, most = x.min(axes), x.max(axes)
        off = 0.02 * (high - low)
        where = f"[{float(low.min()):.2f}, {float(high.max()):.2f}]"
        if (least < low - off).any() or (most > high + off).any():
            return (
                f"they go from {float(least.min()):.4g} to {float(most.max()):.4g}, and normalised ones lie in {where}"
            )
        if float(low.max()) < 0 and float(least.min()) >= 0:
            given = f"{float(least.min()):.4g} to {float(most.max()):.4g}"
            return f"none is below 0 ({given}), and normalised ones lie in {where}"
        return ""

    def in_words(self) -> str:
        """Mean and standard deviation."""
        mean, std = (", ".join(f"{v:.4g}" for v in values) for values in (self.mean, self.std))
        return f"mean {mean}, standard deviation {std}"

    def _check(self, x: NDArray[np.float32]) -> None:
        if x.ndim != 4 or len(self.mean) not in (1, x.shape[1]):
            raise InputError(
                f"{_PREPROCESSOR} normalises images of {len(self.mean)} channels, and x has shape {x.shape}; expected"
                " (n, channels, height, width)"
            )


@dataclass(frozen=True)
class Network:
    """How an image classifier is built from a folder's configuration: `Network.of(folder)(seed)`.

    Args:
        folder: that holds config.json.
        config: its content, without what names code.
        start: weights that networks start from, of a pre-trained model; None: new weights.
    """

    folder: str
    config: Mapping[str, Any] = field(repr=False)
    start: Mapping[str, Tensor] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, folder: str | Path, *, num_classes: int | None = None, channels: int | None = None) -> Network:
        """From a folder.

        Args:
            folder: with config.json.
            num_classes: in place of those that it states.
            channels: of the input, likewise.

        Raises:
            InputError: there is no configuration, or not of an image classifier of the library's own.
            MissingExtraError: transformers is not installed.
        """
        if not (Path(folder) / _CONFIG).is_file():
            raise InputError(f"{folder} holds no {_CONFIG}; expected a folder as save_pretrained writes it")
        config = _cleaned(_read_json(Path(folder) / _CONFIG))
        if num_classes is not None:
            for name in ("id2label", "label2id", "num_labels"):
                config.pop(name, None)
            config["num_labels"] = num_classes
        if channels is not None and "num_channels" in config:
            config["num_channels"] = channels
        made = cls(str(folder), config)
        made._kind()
        return made

    def starting_from(self, base: str | Path) -> Network:
        """The same networks, starting from the weights of another folder; a head of another size is drawn anew.

        Raises:
            InputError: the folder cannot be read, or its weights are of another network.
        """
        state, _ = read_weights(Path(base), trust_pickle=False)
        started = Network(self.folder, self.config, state)
        started(0)
        return started

    def fitting(self, state: Mapping[str, Tensor]) -> Network:
        """The same with as many classes as some weights have.

        Raises:
            InputError: as the constructor of the network.
        """
        own, labels = self._new().state_dict(), self._config().num_labels
        sizes = {
            int(state[name].shape[0])
            for name, tensor in own.items()
            if name in state
            and tensor.ndim
            and tensor.shape[0] == labels != state[name].shape[0]
            and tensor.shape[1:] == state[name].shape[1:]
        }
        if len(sizes) != 1:
            return self
        other = {k: v for k, v in self.config.items() if k not in ("id2label", "label2id", "num_labels")}
        return Network(self.folder, {**other, "num_labels": sizes.pop()}, self.start)

    def __call__(self, seed: int) -> Logits:
        """A network in training mode, new weights drawn by `seed`."""
        with seeded(seed):
            network = self._new() if self.start is None else self._with(self.start, self.folder, head=True)
        return Logits(network.train())

    def load(self, state: Mapping[str, Tensor], where: str) -> Logits:
        """The network with these weights, which must be all that it has.

        Raises:
            InputError: they do not fit.
        """
        return Logits(self._with(state, where, head=False))

    def names(self) -> list[str]:
        """Of the weights."""
        return list(self._new().state_dict())

    def _kind(self) -> Any:
        """The library's class."""
        library = require("transformers", extra="transformers", purpose=f"{self.folder}, a model of transformers,")
        names: Mapping[str, Any] = library.models.auto.modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
        kind: Any = self.config.get("model_type")
        stated = self.config.get("architectures") or []
        if kind not in names:
            raise InputError(
                f"{self.folder}/{_CONFIG} is of model_type {kind!r}, which is no image classifier of transformers"
                f" {library.__version__}; expected one of {len(names)}, as vit, resnet or convnext. Wrap another model"
                " so that its forward returns scores, and pass --arch package.module:function"
            )
        if kind == "timm_wrapper" or _backbones(self.config):
            raise InputError(
                f"{self.folder}/{_CONFIG} names a network of another library, which might be downloaded; pass its"
                " weights with --arch timm:NAME"
            )
        of_kind = names[kind] if isinstance(names[kind], tuple) else (names[kind],)
        chosen = next((name for name in stated if name in of_kind), None)
        if chosen is None and stated:
            raise InputError(
                f"{self.folder}/{_CONFIG} is of a {', '.join(map(str, stated))}, which gives no scores of classes;"
                f" expected {' or '.join(of_kind)}"
            )
        return getattr(library, chosen or of_kind[0])

    def _config(self) -> Any:
        try:
            config = self._kind().config_class.from_dict(dict(self.config))
        except InputError:
            raise
        except Exception as error:  # whatever the library finds wrong with the values
            raise InputError(f"{self.folder}/{_CONFIG} is not understood: {one_line(error)}") from None
        config._attn_implementation = "eager"
        return config

    def _new(self) -> nn.Module:
        try:
            with _quiet():
                network: nn.Module = self._kind()(self._config())
        except InputError:
            raise
        except Exception as error:  # likewise
            raise InputError(
                f"{self.folder} cannot be built: {type(error).__name__}: {one_line(error)}; see its {_CONFIG}"
            ) from None
        return network

    def _with(self, state: Mapping[str, Tensor], where: str, *, head: bool) -> nn.Module:
        """By the library's loader; of what is missing the head may be drawn anew."""
        kind = self._kind()
        try:
            with _quiet():
                network, told = kind.from_pretrained(
                    None,
                    config=self._config(),
                    state_dict=dict(state),
                    ignore_mismatched_sizes=True,
                    output_loading_info=True,
                    attn_implementation="eager",
                    dtype=torch.float32,
                )
        except Exception as error:  # likewise
            raise InputError(f"the weights in {where} cannot be loaded as {kind.__name__}: {one_line(error)}") from None
        missing = sorted({*told["missing_keys"], *(str(m[0]) for m in told["mismatched_keys"])})
        body = f"{kind.base_model_prefix}."
        wrong = [name for name in missing if not head or name.startswith(body)]
        extra = [] if head else sorted(told["unexpected_keys"])
        if wrong or extra:
            lacks = f"{len(wrong)} are missing or of another shape, as {wrong[0]}" if wrong else ""
            more = f"{len(extra)} have no place in it, as {extra[0]}" if extra else ""
            raise InputError(
                f"the weights in {where} do not fit {kind.__name__} with the {_CONFIG} of {self.folder}:"
                f" {'; '.join(filter(None, (lacks, more)))}. Pass the folder that they were saved in"
            )
        loaded: nn.Module = network
        return loaded


def as_the_model_takes(read: AuditData, told: Preprocessing | None) -> tuple[AuditData, tuple[str, ...]]:
    """Images of 8 bits, normalised as the model's folder says; all other data as they are. And what was done, or seen.

    Args:
        read: the data, of which `scaled` tells that they were images of 8 bits.
        told: of the model's folder; None: nothing is known.

    Raises:
        InputError: images of another number of channels.
    """
    if told is None or read.x.ndim != 4:
        return read, ()
    notes: tuple[str, ...] = ()
    if told.size is not None and read.x.shape[2:] != told.size:
        sizes = " x ".join(map(str, told.size)), " x ".join(map(str, read.x.shape[2:]))
        notes = (f"{_PREPROCESSOR} resizes images to {sizes[0]}, and those of {read.source} are {sizes[1]}.",)
    if not read.scaled:
        off = told.unlike(read.x)
        said = f"The numbers in {read.source} are not normalised as {_PREPROCESSOR} says ({told.in_words()}): {off}."
        return read, (*notes, said) if off else notes
    done = f"Images of 8 bits were normalised as {_PREPROCESSOR} says: {told.in_words()}."
    return replace(read, x=told(read.x), scaled=False), (*notes, done)


def is_folder(path: str | Path) -> bool:
    """Whether it is a folder as `save_pretrained` writes it."""
    return (Path(path) / _CONFIG).is_file()


def read_weights(folder: Path, *, trust_pickle: bool) -> tuple[dict[str, Tensor], str]:
    """Weights of a folder, and the SHA-256 of their files, one after another.

    Raises:
        InputError: there are none, they are damaged, or a pickle that is not trusted.
        MissingExtraError: safetensors is not installed.
    """
    files = weight_files(folder)
    if not files:
        raise InputError(f"{folder} holds no model.safetensors; save the model with save_pretrained")
    if files[0].suffix == ".bin":
        return _read_pickled(files[0], trust_pickle)
    library = require("safetensors.torch", extra="vision", purpose=f"reading {files[0]}")
    state: dict[str, Tensor] = {}
    whole = hashlib.sha256()
    for path in files:
        raw = read_bytes(path, "model")
        try:
            state |= library.load(raw)
        except Exception as error:  # the error class is the library's own
            raise InputError(f"{path} is damaged: {one_line(error)}; save it again") from None
        whole.update(raw)
    return state, whole.hexdigest()


def _read_pickled(path: Path, trusted: bool) -> tuple[dict[str, Tensor], str]:
    if not trusted:
        raise InputError(
            f"{path} is a pickle, and loading one can run any code; save the model as safetensors (save_pretrained"
            " does), or pass --trust-pickle if you trust whoever made the file"
        )
    raw = read_bytes(path, "model")
    try:
        state = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a pickle raises
        raise InputError(f"{path} cannot be loaded: {one_line(error)}; save it as safetensors") from None
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(f"{path} holds no weights; save the model again with save_pretrained")
    return {str(name): tensor for name, tensor in state.items()}, sha256(raw)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_bytes(path, "configuration"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {one_line(error)}; save the model again") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}; expected the names and values of a configuration")
    return content


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _cleaned(inner) for name, inner in value.items() if name not in _LEFT_OUT}
    return [_cleaned(inner) for inner in value] if isinstance(value, list) else value


def _backbones(value: Any) -> bool:
    """Whether a configuration, or one inside it, names a network to fetch."""
    if not isinstance(value, dict):
        return False
    fetched = any(value.get(name) for name in ("backbone", "use_timm_backbone", "use_pretrained_backbone"))
    return fetched or any(_backbones(inner) for inner in value.values())


def _numbers(value: Any, path: Path) -> tuple[float, ...]:
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(isinstance(v, int | float) and math.isfinite(v) for v in listed):
        raise InputError(f"{path}: image_mean and image_std are numbers, one a channel; got {value!r:.60}")
    return tuple(float(v) for v in listed)


def _size(stated: Any) -> tuple[int, int] | None:
    if isinstance(stated, int):
        return stated, stated
    if isinstance(stated, dict) and isinstance(stated.get("height"), int) and isinstance(stated.get("width"), int):
        return stated["height"], stated["width"]
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's advice on what to do with heads that are new."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)
