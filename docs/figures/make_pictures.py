"""The pictures of the reference pages: what explainers answer natively and hardened, and what mechanisms do.

    python docs/figures/make_pictures.py [--data DIR] [--only NAME ...]

Maps are those of the gallery's image and network (`make_gallery`), one pixel a place, the native one left of the
hardened one; layers are added up over their channels. Of methods for tables, bars of one applicant of HELOC; of the one
for texts, bars of a sentence's words. Mechanisms are shown on the native map of integrated gradients. Written are PNG
files and SVG files of a few kB, and pictures.json, which says what each shows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import make_gallery
import numpy as np
import torch
from make_figures import MAPS
from PIL import Image
from torch import Tensor, nn

from safexplain import (
    Hardening,
    NormClip,
    Probability,
    RangeClip,
    RankNorm,
    Relative,
    ThresholdMask,
    TopKMask,
    UnitNorm,
)
from safexplain.errors import InputError, RefusedError
from safexplain.explain import CATALOG
from safexplain.explain.alibi import anchor_hardening
from safexplain.explain.catalog import Row
from safexplain.explain.hardened import HARDENED
from safexplain.explain.served import TABLE_METHODS
from safexplain.hardening.clips import Levels, TopKSet
from safexplain.hardening.hardening import SLOTS
from safexplain.hardening.noise import GaussianNoise
from safexplain.outputs import EstimatorModule

OUT = Path(__file__).parent / "reference"
SIDE, GAP = 32, 2
KEY = bytes(range(32))
KNOWN = {picture.name: picture for picture in make_gallery.PICTURES}
STEPS = {"n_steps": 50}
PATHS = ("InternalInfluence", "LayerConductance", "LayerIntegratedGradients", "NeuronConductance",
         "NeuronIntegratedGradients")  # fmt: skip
OPTIONS: Mapping[str, Mapping[str, Any]] = dict.fromkeys(PATHS, STEPS)
POSITIVE = ("Saliency", "VarGrad", "GradCAMPlusPlus", "LayerActivation", "LayerGradientXActivation")
"""Maps without negative values, or with few."""
FEATURES = (
    "external risk", "oldest trade", "newest trade", "age of file", "good trades", "trades 60 days late",
    "trades 90 days late", "never late %", "since last late", "worst late, year", "worst late, ever", "trades",
    "trades, year", "instalments %", "since inquiry", "inquiries", "inquiries, week", "revolving use", "instalment use",
    "revolving balances", "instalment balances", "high-use trades", "with balance %",
)  # fmt: skip
"""Of HELOC's columns, in words."""


@dataclass(frozen=True)
class Mechanism:
    """A hardening with one part, and the words below its picture."""

    hardening: Hardening
    says: str


def mechanisms(native: Tensor) -> dict[str, Mechanism]:
    """By the name of the class, with amounts that fit the map (half of its numbers are clipped), or the defaults."""
    size = float(native.abs().median())
    norm = float(torch.linalg.vector_norm(native))
    noisy = {"std": Relative(0.5), "key": KEY}
    shown = {
        "RangeClip": Hardening(clip=RangeClip(-size, size)),
        "NormClip": Hardening(clip=NormClip(norm / 4)),
        "UnitNorm": Hardening(clip=UnitNorm()),
        "RankNorm": Hardening(clip=RankNorm()),
        "TopKSet": Hardening(clip=TopKSet(k=4, fraction=0.1)),
        "Levels": Hardening(clip=Levels(3)),
        "ThresholdMask": Hardening(mask=ThresholdMask(2 * size)),
        "TopKMask": Hardening(mask=TopKMask(0.1)),
        "GaussianNoise": Hardening(clip=UnitNorm(), noise=GaussianNoise(**noisy)),  # type: ignore[arg-type]
        "Relative": Hardening(clip=UnitNorm(), mask=ThresholdMask(Relative(1.0))),
    }
    for slot, kinds in SLOTS.items():
        shown |= {k.__name__: Hardening(**{slot: k()}) for k in kinds if k.__name__ not in shown}
    return {name: Mechanism(h, ", ".join(repr(s) for s in (h.clip, h.mask, h.noise) if s)) for name, h in shown.items()}


# --------------------------------------------------------------------------------------------------------------- maps


def maps_of(row: Row, case: Any) -> tuple[Tensor, Tensor, str]:
    """The native and the hardened map (channels, h, w), and what was explained."""
    if row.name in KNOWN:
        native, hardened, options = case.explainers(KNOWN[row.name])
        asked = {"target": case.target, **options}
        return *(_ask(e, case.x, asked)[0] for e in (native, hardened)), "logit" if KNOWN[
            row.name
        ].logits else "probability"
    x = case.x if not row.mixes_batch else torch.cat([case.x, case.x.flip(3), case.x.roll(8, 3), case.x.roll(8, 2)])
    last = case.net.layer3[-1].conv2 if row.name == "LayerLRP" else case.net.layer3  # which LRP has a rule for
    layer = () if row.of == "input" else (last,)
    options = dict(OPTIONS.get(row.name, {}))
    if row.name in ("LayerFeatureAblation", "LayerFeaturePermutation"):
        options["layer_mask"] = torch.arange(64).view(1, 1, 8, 8).expand(1, 64, 8, 8).contiguous()
    if row.name == "NeuronFeatureAblation" or ("groups" in row.needs.__name__ and row.name != "ShapleyValues"):
        options["feature_mask"] = case.mask
    chooses = row.target and row.name != "LayerFeaturePermutation"  # Captum 0.9.0 chooses the target twice there
    asked = row.options(x, options) | ({"target": case.target} if chooses else {})
    kind = HARDENED[row.name]
    for model, said in ((Probability(case.net).eval(), "probability"), (case.net, "logit")):
        explained = model if chooses or not row.target else _Chosen(model, case.target)
        try:
            native, hardened = (_ask(kind(explained, *layer, hardening=h), x, asked)
                                for h in (Hardening.none(), make_gallery.HARDENING))  # fmt: skip
        except (RefusedError, InputError):
            if said == "logit":
                raise
            continue
        return native[0], hardened[0], said
    raise AssertionError(row.name)


class _Chosen(nn.Module):
    """One output of a model."""

    def __init__(self, model: nn.Module, target: int) -> None:
        super().__init__()
        self.model, self.target = model, target

    def forward(self, x: Tensor) -> Tensor:
        """(batch,)."""
        chosen: Tensor = self.model(x)[:, self.target]
        return chosen


def _ask(explainer: Any, x: Tensor, asked: Mapping[str, Any]) -> Tensor:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 -- KernelShap draws from it
    found: Tensor = explainer.attribute(x.clone(), **asked).detach()
    return found


def pixels(shown: Tensor, positive: bool) -> Any:
    """(32, 32, 3) uint8: the sum over channels, its colours ending at the 99.5 % quantile of the magnitudes."""
    flat = shown.sum(0).double().numpy() if shown.dim() == 3 else shown.double().numpy()
    largest = float(np.quantile(np.abs(flat), 0.995)) or float(np.abs(flat).max()) or 1.0
    colours = make_gallery.MAGNITUDES if positive else MAPS
    share = np.clip(flat / largest, -1, 1)
    rgb = colours(share if positive else (share + 1) / 2)[..., :3]
    times = SIDE // rgb.shape[0]
    return np.kron((rgb * 255).round().astype(np.uint8), np.ones((times, times, 1), dtype=np.uint8))


def save(name: str, *parts: Any) -> str:
    """Side by side, a transparent gap between them, in a palette of 64 colours."""
    width = len(parts) * SIDE + (len(parts) - 1) * GAP
    image = np.zeros((SIDE, width, 4), dtype=np.uint8)
    for i, part in enumerate(parts):
        image[:, i * (SIDE + GAP) : i * (SIDE + GAP) + SIDE] = np.dstack([part, np.full((SIDE, SIDE), 255, np.uint8)])
    path = OUT / f"{name}.png"
    Image.fromarray(image).quantize(128, method=Image.Quantize.FASTOCTREE).save(path, optimize=True)
    return path.name


# ---------------------------------------------------------------------------------------------------------------- bars


def bars(name: str, panels: Mapping[str, tuple[list[str], list[float]]]) -> str:
    """Horizontal bars, a panel for each; grey words that can be read on white and on black."""
    height, row, width, left = 30, 17, 560, 150
    most = max(len(labels) for labels, _ in panels.values())
    parts = []
    each = width // len(panels)
    for i, (title, (labels, values)) in enumerate(panels.items()):
        x0, span = i * each, each - left - 14
        negative = any(v < 0 for v in values)
        zero = x0 + left + (span / 2 if negative else 0)
        reach = (span / 2 if negative else span) / (max((abs(v) for v in values), default=1.0) or 1.0)
        parts.append(f'<text x="{x0 + left}" y="16" font-weight="bold">{escape(title)}</text>')
        for j, (label, value) in enumerate(zip(labels, values, strict=True)):
            y = height + j * row
            start, length = zero + min(value, 0) * reach, abs(value) * reach
            colour = "#c0392b" if value >= 0 else "#2f7fc1"
            parts.append(f'<text x="{x0 + left - 6}" y="{y + 11}" text-anchor="end">{escape(label)}</text>')
            parts.append(
                f'<rect x="{start:.1f}" y="{y + 1}" width="{max(length, 0.8):.1f}" height="12" fill="{colour}"/>'
            )
    size = f'viewBox="0 0 {width} {height + most * row + 4}" font-family="sans-serif" font-size="11" fill="#808890"'
    path = OUT / f"{name}.svg"
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>\n')
    return path.name


def tables(folder: Path, names: list[str]) -> Iterator[tuple[str, str, str]]:
    """Name, file and words of each method for rows of a table."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    data = np.load(folder / "heloc.npz", allow_pickle=False)
    order = np.random.default_rng(0).permutation(len(data["y"]))
    x, y = data["x"][order].astype(np.float64), data["y"][order]
    x = (x - x[:2000].mean(0)) / np.maximum(x[:2000].std(0), 1e-6)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(23, 64), nn.ReLU(), nn.Linear(64, 2))
    inputs, labels = torch.from_numpy(x[:4000]).float(), torch.from_numpy(y[:4000]).long()
    steps = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(150):
        steps.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        steps.step()
    boosted = EstimatorModule(HistGradientBoostingClassifier(max_iter=40, max_leaf_nodes=15).fit(x[:4000], y[:4000]))
    linear = EstimatorModule(LogisticRegression(max_iter=1000).fit(x[:4000], y[:4000]))
    asked = torch.from_numpy(x[5000:5001]).float()
    for name in names:
        make = TABLE_METHODS[name].catalogued(public=x[6000:6020])
        default = {"Anchors": anchor_hardening, "ProtoDash": Hardening.ranked}
        hardening = default[name](KEY) if name in default else Hardening.recommended()
        said = ""
        models = (Probability(net).eval(), "an MLP"), (boosted, "boosted trees"), (linear, "a linear model")
        for model, words in models:
            with torch.no_grad():
                target = model(asked).argmax(1)
            try:
                np.random.seed(0)  # noqa: NPY002 -- native explainers draw from it
                native, hard = (make(model, hardening=h).attribute(asked, target=target)[0].tolist()
                                for h in (Hardening.none(), hardening))  # fmt: skip
            except (InputError, RefusedError, TypeError) as error:
                print(name, words, type(error).__name__, str(error)[:90])
                continue
            said = words
            break
        if said:
            yield name, bars(name, panels_of(name, native, hard)), f"one applicant of HELOC, {said}"


def words_of_text() -> str:
    """The file of TokenIG: the words of the sentence of docs/text.md, whose code is run up to there."""
    page: dict[str, Any] = {}
    code = re.findall(r"^```python\n(.*?)^```", (OUT.parents[1] / "text.md").read_text(), re.DOTALL | re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(None):
        for block in code[:3]:
            exec(block, page)
    mask = page["words"](page["ids"], page["continues"])
    asked = {"baselines": page["baselines"], "target": page["predicted"], "feature_mask": mask}
    panels = {}
    for title, hardening in (("native", Hardening.none()), ("hardened", page["hardening"])):
        values = HARDENED["TokenIG"](page["explained"], hardening=hardening).attribute(page["ids"], **asked)[0]
        each = [(mask[0] == word).nonzero()[:, 0] for word in mask[0].unique()][1:-1]  # without [CLS] and [SEP]
        labels = [page["tokenizer"].decode(page["ids"][0, places]) for places in each]
        panels[title] = (labels, [float(values[places[0]]) for places in each])
    return bars("TokenIG", panels)


def panels_of(name: str, native: list[float], hardened: list[float]) -> dict[str, tuple[list[str], list[float]]]:
    """What is shown of the numbers: the eight largest natively, and what is left of these."""
    if name == "Anchors":
        conditions = [f"{FEATURES[j // 2]} {'>' if j % 2 == 0 else '<='}" for j in range(46)]
        chosen = [j for j in range(46) if native[j] or hardened[j]]
        return {title: ([*(conditions[j] for j in chosen), "precision", "coverage"],
                        [*(v[j] for j in chosen), v[-2], v[-1]])
                for title, v in (("native", native), ("hardened", hardened))}  # fmt: skip
    if name == "ProtoDash":
        half = len(native) // 2
        chosen = sorted(range(half), key=lambda j: -native[j])[:8]
        return {title: ([f"public row {j + 1}" for j in chosen], [v[half + j] for j in chosen])
                for title, v in (("native weights", native), ("hardened", hardened))}  # fmt: skip
    chosen = sorted(range(len(native)), key=lambda j: -abs(native[j]))[:8]
    chosen += [j for j in range(len(native)) if hardened[j] > 0 and j not in chosen]
    return {title: ([FEATURES[j] for j in chosen], [v[j] for j in chosen])
            for title, v in (("native", native), ("hardened", hardened))}  # fmt: skip


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("SAFEXPLAIN_DATA"))
    parser.add_argument("--only", nargs="+", default=[], help="names of the catalog, or of mechanisms")
    given = parser.parse_args()
    if given.data is None:
        raise SystemExit(make_gallery.NEEDED)
    warnings.simplefilter("ignore")
    OUT.mkdir(exist_ok=True)
    told = OUT / "pictures.json"
    found = json.loads(told.read_text()) if told.is_file() else {}
    case = make_gallery.load_case(Path(given.data), torch.device("cpu"))
    wanted = [name for name in CATALOG if not given.only or name in given.only]
    if "TokenIG" in wanted:
        found["TokenIG"] = {"file": words_of_text(), "shows": "a synthetic film review, a transformer of one layer"}
    for name in (n for n in wanted if n not in TABLE_METHODS and n != "TokenIG"):
        row = CATALOG[name]
        native, hardened, said = maps_of(row, case)
        positive = name in POSITIVE or not bool((native < 0).any())
        file = save(name, pixels(native, positive), pixels(hardened, positive))
        found[name] = {"file": file, "shows": f"the {said} of the class that is predicted, by a ResNet-20"}
        told.write_text(json.dumps(dict(sorted(found.items())), indent=2) + "\n")
        print(file, (OUT / file).stat().st_size, flush=True)
    native = maps_of(CATALOG["IG"], case)[0]
    for name, mechanism in mechanisms(native).items():
        if given.only and name not in given.only:
            continue
        released = mechanism.hardening(native[None], inputs=case.x, target=case.target)[0]
        found[name] = {"file": save(name, pixels(native, False), pixels(released, False)), "shows": mechanism.says}
    photo = np.asarray(case.picture)
    found["photo"] = {"file": save("photo", photo), "shows": "the image that is explained"}
    for name, file, says in tables(Path(given.data), [n for n in wanted if n in TABLE_METHODS]):
        found[name] = {"file": file, "shows": says}
        print(file, (OUT / file).stat().st_size, flush=True)
    told.write_text(json.dumps(dict(sorted(found.items())), indent=2) + "\n")


if __name__ == "__main__":
    main()
