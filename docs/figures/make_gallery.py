"""The tables of docs/explainers.md, and the figure of docs/gallery.md: native beside hardened maps of one picture.

    python docs/figures/make_gallery.py [--data DIR] [--device cpu] [--out docs/figures]
    python docs/figures/make_gallery.py --write-table

The first form explains a CIFAR-10 test image with a trained ResNet-20, writes gallery-light.png, gallery-dark.png and
gallery.json, and then the tables; the second writes the tables alone, from the catalog and the committed gallery.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from captum._utils.models.linear_model import SkLearnLasso
from captum.attr import Attribution
from captum.attr._utils.custom_modules import Addition_Module
from make_figures import MAPS, SCHEMES, style
from matplotlib import pyplot as plt
from torch import Tensor, nn
from torch.nn import functional

from safexplain import Hardening, Probability, superpixels
from safexplain.audit import utility
from safexplain.explain import CATALOG
from safexplain.explain.catalog import Row
from safexplain.explain.feature_groups import find_groups
from safexplain.explain.hardened import HARDENED

HERE = Path(__file__).parent
PAGES = (HERE.parent / "explainers.md", HERE.parent / "gallery.md")
NEEDED = """\
give a folder by --data or the environment variable SAFEXPLAIN_DATA, with
  cifar10.npz and load_data.py    load("cifar10") -> x_test (n, 32, 32, 3) uint8, y_test
  weights/resnet20_cifar10.npz and weights/nets.py    load("resnet20_cifar10") -> network, preparation of images"""
PACKAGES = ("safexplain", "torch", "captum", "numpy", "scikit-image", "scikit-learn")
IMAGE, NET = 594, "resnet20_cifar10"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
HARDENING = Hardening.recommended()
MAGNITUDES = mpl.colors.LinearSegmentedColormap.from_list("magnitudes", ["#f7f7f7", "#c2a5cf", "#762a83", "#2a0a3f"])


@dataclass(frozen=True)
class Picture:
    """How a method is called for its picture.

    Args:
        name: in the catalog.
        options: of `attribute`; the word "superpixels" stands for the mask.
        constructor: of the class.
        logits: explain the logit, because the method wants all of the model as modules.
        magnitudes: the map has no negative values.
        runs: timed calls of each kind.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    constructor: dict[str, Any] = field(default_factory=dict)
    logits: bool = False
    magnitudes: bool = False
    runs: int = 15


_NOISY = {"nt_samples": 50, "stdevs": 0.2, "nt_samples_batch_size": 10}
_GROUPS = {"feature_mask": "superpixels", "perturbations_per_eval": 16}
_ENLARGED = {"interpolate_mode": "bilinear"}
PICTURES = (
    Picture("Saliency", magnitudes=True),
    Picture("InputXGradient"),
    Picture("IG", {"n_steps": 50}),
    Picture("GuidedBackprop"),
    Picture("Deconvolution"),
    Picture("DeepLift", logits=True),
    Picture("DeepLiftShap", {"baselines": "blurred"}, logits=True),
    Picture("LRP", logits=True),
    Picture("SmoothGrad", _NOISY),
    Picture("VarGrad", _NOISY, magnitudes=True),
    Picture("GradientShap", {"baselines": "blurred", "n_samples": 50, "stdevs": 0.2}),
    Picture("Occlusion", {"sliding_window_shapes": (3, 8, 8), "strides": (3, 4, 4), "perturbations_per_eval": 16}),
    Picture("FeatureAblation", _GROUPS),
    Picture("ShapleyValueSampling", {**_GROUPS, "n_samples": 25}, runs=5),
    Picture("KernelShap", {**_GROUPS, "n_samples": 500}, runs=5),
    Picture("Lime", {**_GROUPS, "n_samples": 500}, {"interpretable_model": SkLearnLasso(alpha=1e-4)}, runs=5),
    Picture("GradCAM", _ENLARGED, {"layer": "layer3"}),
    Picture("GradCAMPlusPlus", _ENLARGED, {"layer": "layer3"}, magnitudes=True),
    Picture("GuidedGradCam", {}, {"layer": "layer3"}),
)


class Block(nn.Module):
    """Two convolutions and a shortcut; every activation and the sum are modules of their own."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.relu1, self.relu2, self.add = nn.ReLU(), nn.ReLU(), Addition_Module()
        self.stride, self.more = stride, out - channels

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, h, w) -> (batch, out, h / stride, w / stride)."""
        short = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more // 2))
        return self.relu2(self.add(self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x))))), short))


class ResNet(nn.Module):
    """ResNet for 32 x 32 images (arXiv 1512.03385, section 4.2): 6 n + 2 layers, shortcuts without weights."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        self.layer1 = nn.Sequential(Block(16, 16, 1), *(Block(16, 16, 1) for _ in range(n - 1)))
        self.layer2 = nn.Sequential(Block(16, 32, 2), *(Block(32, 32, 1) for _ in range(n - 1)))
        self.layer3 = nn.Sequential(Block(32, 64, 2), *(Block(64, 64, 1) for _ in range(n - 1)))
        self.pool, self.linear = nn.AdaptiveAvgPool2d(1), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, 10)."""
        x = self.layer3(self.layer2(self.layer1(self.relu(self.bn1(self.conv1(x))))))
        return self.linear(self.pool(x).flatten(1))


@dataclass(frozen=True)
class Case:
    """What is explained."""

    net: ResNet
    picture: np.ndarray[Any, Any]
    x: Tensor
    target: int
    probability: float
    mask: Tensor

    def explainers(self, picture: Picture) -> tuple[Attribution, Attribution, dict[str, Any]]:
        """The native and the hardened explainer of a method, and the arguments of both."""
        row = CATALOG[picture.name]
        stand_ins = {"superpixels": self.mask, "blurred": torch.cat([torch.zeros_like(self.x), blurred(self.x)])}
        made = {k: getattr(self.net, v) if k == "layer" else v for k, v in picture.constructor.items()}
        options = {k: stand_ins[v] if isinstance(v, str) and v in stand_ins else v for k, v in picture.options.items()}
        model = self.net if picture.logits else Probability(self.net).eval()
        native = row.explainer(model, made.get("layer")) if not made or "layer" in made else row.native(model, **made)
        hardened = HARDENED[row.name](model, **made, hardening=HARDENING)
        return native, hardened, options | ({"nt_type": row.nt_type} if row.nt_type else {})


def blurred(x: Tensor) -> Tensor:
    """A second baseline beside zeros (the mean colour): the image without its details."""
    return functional.interpolate(functional.adaptive_avg_pool2d(x, 4), x.shape[2:], mode="bilinear")


def load_case(folder: Path, device: torch.device) -> Case:
    """The image and the network, which is compared with the one that the folder's own code builds."""
    x, y = (_module(folder / "load_data.py").load("cifar10")[name][IMAGE] for name in ("x_test", "y_test"))
    theirs, prepare = _module(folder / "weights" / "nets.py").load(NET)
    net = ResNet((int(re.sub(r"\D", "", NET.partition("_")[0])) - 2) // 6)
    net.load_state_dict(theirs.state_dict())
    images = prepare(x[None])
    with torch.no_grad():
        logits = net.eval()(images)
        if not torch.allclose(logits, theirs.eval()(images), atol=1e-5):
            raise SystemExit("the network built here gives other logits than that of weights/nets.py")
    if int(logits.argmax()) != int(y):
        raise SystemExit(f"test image {IMAGE} is not classified correctly")
    mask = superpixels(images, n_segments=50)
    return Case(net.to(device), x, images.to(device), int(y), float(logits.softmax(1).max()), mask.to(device))


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise SystemExit(f"{path} does not exist: {NEEDED}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(case: Case, picture: Picture) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The native and the hardened map, and what gallery.json says of them."""
    native, hardened, options = case.explainers(picture)
    own = {k: v for k, v in options.items() if k != "interpolate_mode"}

    def call(explainer: Attribution, arguments: dict[str, Any]) -> tuple[Tensor, float]:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 -- KernelShap draws from it
        begin = _clock(case.x)
        found = explainer.attribute(case.x.clone(), target=case.target, **arguments).detach()
        return found.cpu(), 1000 * (_clock(case.x) - begin)

    maps, at_own = ([call(e, arguments)[0] for e in (native, hardened)] for arguments in (options, own))
    times = np.array([[call(e, options)[1] for e in (native, hardened)] for _ in range(picture.runs)])
    groups = find_groups(options, (case.x,))
    first = slice(None)
    if groups is not None:
        first = np.unique(groups.canonical((case.x,))[0].cpu().numpy(), return_index=True)[1]
    values = [m.flatten(1)[:, first].numpy() for m in at_own]
    kept = utility(*values)
    batched = {}
    if "perturbations_per_eval" in options:
        one = {**options, "perturbations_per_eval": 1}
        batched["native_one_per_eval_ms"] = round(float(np.median([call(native, one)[1] for _ in range(3)])), 2)
    words = {k: "zeros, blurred" if v == "blurred" else v for k, v in (picture.constructor | picture.options).items()}
    return *maps, {
        "explained": "logit" if picture.logits else "probability",
        "options": {k: v if isinstance(v, str | int | float | tuple) else _said(v) for k, v in words.items()},
        "values": values[0].shape[1],
        "native_ms": round(float(np.median(times[:, 0])), 2),
        "hardened_ms": round(float(np.median(times[:, 1])), 2),
        "ratio": round(float(np.median(times[:, 1] / times[:, 0])), 2),
        **batched,
        "runs": picture.runs,
        "top_overlap": round(kept.top_overlap, 3),
        "rank_correlation": round(kept.rank_correlation, 3),
    }


def _clock(x: Tensor) -> float:
    """Seconds: of this process on the CPU, where other work may run beside it; wall time on a GPU."""
    if not x.is_cuda:
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _said(value: Any) -> str:
    return f"SkLearnLasso({value.construct_kwargs['alpha']:g})" if isinstance(value, SkLearnLasso) else str(value)


SIDE, GAP, BETWEEN, TITLE, COLUMNS, DPI = 128, 5, 34, 27, 4, 150
"""Pixels: a map, between two maps of a method, between methods, for the name; methods beside each other."""


def draw(case: Case, maps: dict[str, tuple[Tensor, Tensor]], records: dict[str, Any], scheme: str) -> plt.Figure:
    """The gallery: the picture, then the methods; every map is placed at whole pixels."""
    text, faint = SCHEMES[scheme]["text"], {"light": "#57606a", "dark": "#9aa1ad"}[scheme]
    rows, pair, top = -(-(len(maps) + 1) // COLUMNS), 2 * SIDE + GAP, 26
    width, height = COLUMNS * pair + (COLUMNS - 1) * BETWEEN, top + rows * (TITLE + SIDE) + (rows - 1) * 12
    figure = plt.figure(figsize=(width / DPI, height / DPI), dpi=DPI)

    def place(image: Any, left: int, down: int, **how: Any) -> None:
        axes = figure.add_axes((left / width, 1 - (down + SIDE) / height, SIDE / width, SIDE / height))
        axes.imshow(image, interpolation="nearest", **how)
        axes.axis("off")

    def write(words: str, left: int, down: int, **how: Any) -> None:
        figure.text(left / width, 1 - down / height, words, va="baseline", **{"size": 7.6, "color": text, **how})

    for column in range(COLUMNS):
        for part, word in enumerate(("native", "hardened")):
            if column or rows > 1:
                centre = column * (pair + BETWEEN) + part * (SIDE + GAP) + SIDE // 2
                write(word, centre, 16, ha="center", color=faint)
    for i, name in enumerate(("", *maps)):
        left, down = i % COLUMNS * (pair + BETWEEN), top + i // COLUMNS * (TITLE + SIDE + 12)
        if not name:
            write(CLASSES[case.target], left, down + 20, weight="bold")
            place(case.picture, left, down + TITLE)
            _scales(figure, (left + SIDE + GAP, down + TITLE), (width, height), faint)
            continue
        write(name, left, down + 20, weight="bold")
        write(f"{records[name]['top_overlap']:.0%}", left + pair, down + 20, ha="right", color=faint)
        picture = next(p for p in PICTURES if p.name == name)
        for part, found in enumerate(maps[name]):
            shown = found[0].sum(0).numpy()
            largest = float(np.quantile(np.abs(shown), 0.995)) or 1.0
            how = {"cmap": MAGNITUDES, "vmin": 0} if picture.magnitudes else {"cmap": MAPS, "vmin": -largest}
            how["cmap"] = how["cmap"].resampled(33)
            place(shown, left + part * (SIDE + GAP), down + TITLE, vmax=largest, **how)
    return figure


def _scales(figure: plt.Figure, at: tuple[int, int], size: tuple[int, int], colour: str) -> None:
    """What the colours mean, beside the picture."""
    (left, down), (width, height) = at, size
    for i, (cmap, words) in enumerate(((MAPS, ("against", "", "for")), (MAGNITUDES, ("0", "", "large")))):
        edge = down + 30 + 52 * i
        axes = figure.add_axes(((left + 8) / width, 1 - (edge + 14) / height, (SIDE - 16) / width, 14 / height))
        axes.imshow(np.linspace(0, 1, 33)[None], cmap=cmap, aspect="auto")
        axes.axis("off")
        for word, x, side in zip(words, (8, SIDE // 2, SIDE - 8), ("left", "center", "right"), strict=True):
            figure.text((left + x) / width, 1 - (edge + 30) / height, word, ha=side, size=7, color=colour)


_NEEDS = {
    "_zero_baselines": "needs `baselines`",
    "_windows": "needs `sliding_window_shapes`",
    "_groups": "takes `feature_mask`",
    "_few_groups": "needs a `feature_mask` of few groups",
    "_neuron": "needs `neuron_selector`",
    "_neuron_and_zero": "needs `neuron_selector`, `baselines`",
}
_MORE = {
    "Saliency": "signed with `abs=False`",
    "DeepLift": "[refuses](#what-is-refused-and-what-to-write-instead) parts without a rule",
    "DeepLiftShap": "[refuses](#what-is-refused-and-what-to-write-instead) parts without a rule",
    "LRP": "[refuses](#what-is-refused-and-what-to-write-instead) modules without a rule",
    "SmoothGrad": "over any Captum explainer",
    "VarGrad": "over any Captum explainer",
    "GradCAM": "[default layer, enlarging](#grad-cam)",
    "GradCAMPlusPlus": "[default layer, enlarging](#grad-cam)",
    "GuidedGradCam": 'DeepLeak\'s "GradCAM++"; enlarged before hardening',
    "KernelShap": "at least two groups",
    "Anchors": "[Alibi](libraries.md#alibi)",
    "ProtoDash": "[AIX360](libraries.md#protodash); needs a public set",
    "LimeTabular": "[LIME](libraries.md#lime)",
    "AlibiKernelShap": "[Alibi](libraries.md#alibi); needs shap",
    "TreeShap": "[Alibi](libraries.md#alibi); needs shap; trees of scikit-learn",
    "TreeExplainer": "[shap](libraries.md#shap); scikit-learn, XGBoost, LightGBM",
    "LinearExplainer": "[shap](libraries.md#shap)",
    "KernelExplainer": "[shap](libraries.md#shap)",
}


def _facts(row: Row) -> list[str]:
    held = (
        (row.stochastic, "random"),
        (row.mixes_batch, "mixes the batch"),
        (row.hooks, "private copy"),
        (row.needs_relu, "needs `nn.ReLU`"),
    )
    return [words for holds, words in held if holds]


def _notes(row: Row) -> str:
    # of layers and neurons all have a private copy
    facts = [words for words in _facts(row) if row.family != "representation" or not words.startswith("private")]
    more = (_NEEDS.get(row.needs.__name__), "no delta" if row.delta else None, _MORE.get(row.name))
    return "; ".join([*facts, *filter(None, more)])


def _ms(record: dict[str, Any] | None) -> str:
    times = [record["native_ms"], record["hardened_ms"]] if record else []
    return " / ".join(f"{ms:.0f}" if ms >= 10 else f"{ms:.1f}" for ms in times)


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Name of a place in the pages -> its Markdown table, from the catalog and gallery.json."""
    methods, layers, gallery = [], [], []
    for row in CATALOG.values():
        record, name = found["methods"].get(row.name), f"`{row.hardened_name}`"
        if row.of == "input" or record:
            methods.append((name, row.family, row.summary, _ms(record), _notes(row)))
        else:
            layers.append((name, row.summary, _notes(row)))
    for name, record in found["methods"].items():
        options = ", ".join(f"{k}={v}" for k, v in record["options"].items())
        numbers = (str(record["values"]), f"{record['top_overlap']:.0%}", f"{record['rank_correlation']:.2f}")
        gallery.append((name, *numbers, options))
    return {
        "methods": _table("Class | Family | Answer | ms, native / hardened | Notes", methods),
        "layers": _table("Class | Answer | Notes", layers),
        "gallery": _table("Method | Numbers | Top 10 % kept | Rank correlation | Options", gallery),
    }


def _table(header: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([f"| {header} |", "|---" * (header.count("|") + 1) + "|", *lines]) + "\n"


def write_tables(pages: Sequence[Path], found: dict[str, Any]) -> None:
    """Put each table between its markers, `<!-- NAME -->` and `<!-- end -->`, which one of the pages has."""
    texts = {page: page.read_text() for page in pages}
    for name, table in tables(found).items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        count = sum(len(place.findall(text)) for text in texts.values())
        if count != 1:
            raise SystemExit(f"{', '.join(p.name for p in pages)}: {count} places for the table {name!r}, expected 1")
        texts = {page: place.sub(lambda m: m[1] + table + m[2], text) for page, text in texts.items()}  # noqa: B023
    for page, text in texts.items():
        page.write_text(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the gallery and the tables, or the tables alone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("SAFEXPLAIN_DATA"), help="folder of data and weights"
    )
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--write-table", action="store_true", help="write the tables from gallery.json, no more")
    given = parser.parse_args(arguments)
    numbers = given.out / "gallery.json"
    if not given.write_table:
        if given.data is None:
            raise SystemExit(NEEDED)
        make(load_case(Path(given.data), given.device), given.out)
    write_tables(PAGES, json.loads(numbers.read_text()))


def make(case: Case, out: Path) -> None:
    """Explain, measure and draw."""
    mpl.use("Agg")
    warnings.simplefilter("ignore")  # of Captum, about hooks and about inputs that need gradients
    maps, records = {}, {}
    for picture in PICTURES:
        *found, records[picture.name] = measure(case, picture)
        maps[picture.name] = (found[0], found[1])
        print(picture.name, records[picture.name], flush=True)
    for scheme in SCHEMES:
        with mpl.rc_context(style(scheme)):
            figure = draw(case, maps, records, scheme)
            figure.savefig(path := out / f"gallery-{scheme}.png", dpi=DPI)
            plt.close(figure)
            print(f"{path}: {path.stat().st_size / 1024:.0f} KB", flush=True)
    cuda = case.x.is_cuda
    about = {
        "image": {"set": "CIFAR-10 test (a JPEG copy)", "row": IMAGE, "class": CLASSES[case.target]},
        "model": {"name": NET, "probability": round(case.probability, 3)},
        "hardening": HARDENING.to_dict(),
        "device": torch.cuda.get_device_name() if cuda else _cpu(),
        "time": "wall time" if cuda else f"CPU time of the process, {torch.get_num_threads()} thread(s)",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }  # fmt: skip
    (out / "gallery.json").write_text(json.dumps({**about, "methods": records}, indent=2) + "\n")


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.is_file() else None
    return found[1] if found else platform.processor() or platform.machine()


if __name__ == "__main__":
    main(sys.argv[1:])
