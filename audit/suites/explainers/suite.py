"""What every explainer of the catalog leaks, natively and hardened, and what the hardened answer is still worth.

One small task for each kind of input, with models that overfit: "digits" (a small CNN; the layer is its last
convolution, the neuron the sum over it), and the rows of HELOC with an MLP, a forest ("trees") and a logistic
regression ("linear"). Half of a pool are members, by coin flips; models take turns as the target and are asked once
about every example and the class that they predict. Compared are the likelihood ratio of the label alone and the
complete stack on the label and the native or hardened answer: members found at 1 % false positives and AUC, with 95 %
intervals from resampled examples. Methods that need modules all the way explain the logit, the others the probability.
Definitions: “Method” in page.md.

    python -m audit.suites.explainers [--method NAME ...] [--data DIR] [--out FILE] [--cache DIR] [--quick]
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from captum._utils.models.linear_model import SkLearnLasso
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from safexplain import Hardening, Probability
from safexplain.audit import Population, Recipe, Shadows, Signals, train_shadows, utility
from safexplain.audit.answers import Predictions, predict, summarise
from safexplain.audit.attacks.learned import Stacked
from safexplain.audit.attacks.suite import Scorer
from safexplain.errors import InputError, RefusedError, SafexplainError
from safexplain.explain import CATALOG, default_layer
from safexplain.explain.alibi import anchor_hardening
from safexplain.explain.catalog import Row
from safexplain.explain.feature_groups import find_groups
from safexplain.explain.hardened import HARDENED
from safexplain.explain.served import TABLE_METHODS
from safexplain.outputs import EstimatorModule, are_probabilities

from ...shared.resampling import weights_of
from ...shared.run import Progress, Run
from ..releases.suite import Always, rates_of
from ..releases.tasks import TASKS as RELEASE_TASKS

Floats = NDArray[np.floating[Any]]

FPRS = (0.01,)
ONE_SIDED = 1.6449
BATCH = 100
RESAMPLES = 400
BACKGROUND = 20
"""Public rows that explainers of tables compare with."""
SIZES = {"digits": (600, 17, 4), "heloc": (200, 17, 4), "trees": (200, 17, 4), "linear": (200, 17, 4)}
"""Examples, models, and how many of them take turns as the target."""
QUICK = {"digits": (60, 8, 2), "heloc": (60, 8, 2), "trees": (60, 8, 2), "linear": (60, 8, 2)}
CODE = ("safexplain.audit.attacks.suite", "safexplain.audit.queries", "safexplain.hardening.clips")
"""What the stored methods depend on, beside the code here."""

STEPS = {"n_steps": 16}
TUNNEL = {"nt_samples": 10, "stdevs": 0.1}
SAMPLES = {"n_samples": 10}
COALITIONS = {"n_samples": 50, "perturbations_per_eval": 50}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("IG", "InternalInfluence", "LayerConductance", "LayerIntegratedGradients"), STEPS),
    **dict.fromkeys(("NeuronConductance", "NeuronIntegratedGradients"), STEPS),
    **dict.fromkeys(("SmoothGrad", "VarGrad"), TUNNEL),
    **dict.fromkeys(("GradientShap", "LayerGradientShap", "NeuronGradientShap"), SAMPLES),
    "ShapleyValueSampling": {"n_samples": 8, "perturbations_per_eval": 16},
    **dict.fromkeys(("KernelShap", "Lime"), COALITIONS),
    "LimeTabular": {"num_samples": 500},
    "AlibiKernelShap": {"nsamples": 128, "l1_reg": False},
    "KernelExplainer": {"nsamples": 128},
}
"""Options beside those that a method cannot do without; methods of `SQUARES` get squares of 2 x 2 pixels."""
SQUARES = ("FeatureAblation", "FeaturePermutation", "ShapleyValueSampling", "KernelShap", "Lime")
CHANNELS = ("LayerFeatureAblation", "LayerFeaturePermutation")
"""Methods whose groups are the channels of the layer."""
SLOW = {
    "Anchors": "its search takes .1 to .4 s of processor time for each row, and the suite would ask for 6,800 answers"
}
"""Methods that are measured only where `--method` names them, and why."""
DEFAULTS: Mapping[str, Callable[[bytes], Hardening]] = {"Anchors": anchor_hardening, "ProtoDash": Hardening.ranked}
"""What a hardened class releases if it is not told otherwise, where that is not `Hardening.recommended()`."""


# ---------------------------------------------------------------------------------------------------------- the tasks


class SmallCNN(nn.Module):
    """For 1 x 8 x 8, of modules that every method of Captum has a rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 1, 8, 8) -> logits (batch, 10)."""
        logits: Tensor = self.head(torch.flatten(self.body(x), 1))
        return logits


@dataclass(frozen=True)
class Task:
    """Data and models.

    Args:
        models, targets: how many.
    """

    name: str  # of the task
    pool: Population  # of which members are drawn
    public: Population  # rows that nobody trained on
    train: Any  # a recipe or a scikit-learn classifier
    build: Callable[[int], nn.Module] | None  # makes an untrained network
    models: int
    targets: int
    source: dict[str, Any]  # of the data


def task_of(name: str, quick: bool, folder: Path) -> Task:
    """A task by its name."""
    n, models, targets = (QUICK if quick else SIZES)[name]
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        x, y = x[order].reshape(-1, 1, 8, 8) / 16.0, y[order]
        recipe = Recipe(lr=2e-3, epochs=5 if quick else 40, batch_size=32)
        return Task(name, Population.of(x[600 : 600 + n], y[600 : 600 + n]), Population.of(x[1200:], y[1200:]), recipe,
                    lambda seed: SmallCNN(), models, targets, {"file": "bundled with scikit-learn"})  # fmt: skip
    of = RELEASE_TASKS["heloc" if name == "heloc" else "heloc_trees"]("quick" if quick else "small", folder)
    pool, public = (Population.of(p.x[:n].numpy(), p.y[:n].numpy()) for p in (of.pool, of.public))
    own = {"trees": RandomForestClassifier(n_estimators=40), "linear": LogisticRegression(max_iter=1000)}
    train = own.get(name, of.train)
    return Task(name, pool, public, train, of.build, models, targets, of.source)


@dataclass
class Trained:
    """A task with its models."""

    task: Task  # of the models
    shadows: Shadows  # the models, and who trained on what
    said: Predictions  # what they predict
    known: dict[int, Scorer]  # for each target, what was found in the labels alone; methods share it

    @classmethod
    def of(cls, task: Task, cache: Path, progress: Progress) -> Trained:
        """Trained, or read from the cache."""
        shadows = train_shadows(task.pool, task.train, build=task.build, models=task.models, progress=progress,
                                cache=None if task.build is None else str(cache))  # fmt: skip
        return cls(task, shadows, predict(shadows, task.pool, patience=(1,), progress=progress), {})

    @property
    def labels(self) -> NDArray[np.int64]:
        """(m, n) what every model predicts, and is asked to explain."""
        return np.asarray(self.said.values["label"].astype(np.int64))

    def accuracy(self) -> dict[str, float]:
        """Share of right labels."""
        right, member = self.labels == self.task.pool.y.numpy(), self.shadows.membership
        return {"members": float(right[member].mean()), "non_members": float(right[~member].mean())}


# ------------------------------------------------------------------------------------------------------------ answers


@dataclass(frozen=True)
class Answers:
    """What the models answered.

    Args:
        native, hardened: (m, n, k) numbers.
        places: (features,) which number each part of the input belongs to; None where the numbers are of no input.
    """

    native: Floats
    hardened: Floats
    explains: str  # "probability" or "logit"
    hardening: str  # in words
    places: NDArray[np.int64] | None


def squares(x: Tensor) -> Tensor:
    """(1, 1, 8, 8) squares of 2 x 2 pixels."""
    return (torch.arange(8)[:, None] // 2 * 4 + torch.arange(8)[None] // 2).view(1, 1, 8, 8)


def arguments_of(row: Row, x: Tensor) -> dict[str, Any]:
    """Of one call, beside inputs and target."""
    chosen = dict(OPTIONS.get(row.name, {}))
    if row.name in SQUARES:
        chosen["feature_mask"] = squares(x)
    if row.name in CHANNELS:
        chosen["layer_mask"] = torch.arange(32).view(1, 32, 1, 1).expand(1, 32, 4, 4).contiguous()
    return row.options(x, chosen)


def made(row: Row, model: nn.Module, hardening: Hardening) -> Any:
    """The hardened class of a row on a model."""
    layer = () if row.of == "input" else (default_layer(model),)
    options = {"interpretable_model": SkLearnLasso(alpha=1e-4)} if row.name == "Lime" else {}
    return HARDENED[row.name](model, *layer, hardening=hardening, **options)


def of_maps(row: Row, trained: Trained, progress: Progress) -> Answers:
    """Maps of a method of Captum, or ours: native ones, reduced to the numbers they are made of, and then hardened.

    The hardened class itself is asked about the first batch, and must release the same.
    """
    pool, hardening = trained.task.pool, Hardening.recommended()
    explains = "probability" if _explains_probability(row, trained) else "logit"
    native: list[Floats] = []
    groups: Tensor | None = None
    for i, net in enumerate(trained.shadows.models):
        model = Probability(net).eval() if explains == "probability" else net.eval()
        rows = []
        for start in range(0, len(pool), BATCH):
            x = pool.x[start : start + BATCH]
            target = torch.from_numpy(trained.labels[i, start : start + BATCH])
            found = _ask(made(row, model, Hardening.none()), row, x, target)
            if not rows and not native:
                groups = _groups(row, x, found)
                released = _numbers(_ask(made(row, model, hardening), row, x, target), groups)
                if not torch.equal(released, hardening(_numbers(found, groups))):
                    raise RuntimeError(f"{row.hardened_name} does not release what its hardening makes of the map")
            rows.append(_numbers(found, groups))
        native.append(torch.cat(rows).double().numpy())
        progress(row.name, i + 1, len(trained.shadows.models))
    maps = np.stack(native)
    hardened = np.stack([hardening(torch.from_numpy(each)).numpy() for each in maps])
    return Answers(maps, hardened, explains, repr(hardening.clip), _places(row, maps.shape[2], groups))


def _explains_probability(row: Row, trained: Trained) -> bool:
    x, target = trained.task.pool.x[:2], torch.from_numpy(trained.labels[0, :2])
    try:
        _ask(made(row, Probability(trained.shadows.models[0]).eval(), Hardening.none()), row, x, target)
    except (RefusedError, InputError):
        return False
    return True


def _ask(explainer: Any, row: Row, x: Tensor, target: Tensor) -> Tensor:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 -- KernelShap draws from it
    inputs = x.detach().clone().requires_grad_(row.leaf_inputs)
    asked = arguments_of(row, x) | ({"target": target} if row.target else {})
    found: Tensor = explainer.attribute(inputs, **asked).detach()
    return found


def _groups(row: Row, x: Tensor, found: Tensor) -> Tensor | None:
    """(features,) of one example, the number of the group that each is of."""
    tensors = (found,) if row.of == "layer" and row.name in CHANNELS else (x,)
    groups = find_groups(arguments_of(row, x), tensors)
    return None if groups is None else groups.canonical(tensors)[0].flatten()


def _numbers(found: Tensor, groups: Tensor | None) -> Tensor:
    flat = found.flatten(1)
    if groups is None:
        return flat
    first = np.unique(groups.numpy(), return_index=True)[1]
    return flat[:, first]


def _places(row: Row, k: int, groups: Tensor | None) -> NDArray[np.int64] | None:
    if row.of != "input" and row.name not in ("GradCAM", "GradCAMPlusPlus", "GuidedGradCam"):
        return None
    if groups is not None:
        return np.unique(groups.numpy(), return_inverse=True)[1].astype(np.int64)
    return np.arange(64) if k == 64 else squares(torch.zeros(1)).flatten().numpy()


def of_rows(row: Row, trained: Trained, progress: Progress) -> Answers:
    """Numbers of a method for rows of a table, asked natively and hardened; each model's noise has its own key."""
    pool, public = trained.task.pool, trained.task.public.x[:BACKGROUND].numpy()
    kind = TABLE_METHODS[row.name]
    make = kind.catalogued(public=public if kind._needs_background else None)
    options = dict(OPTIONS.get(row.name, {}))
    both: tuple[list[Floats], list[Floats]] = ([], [])
    said = ""
    for i, net in enumerate(trained.shadows.models):
        model = net if isinstance(net, EstimatorModule) else Probability(net).eval()
        target = torch.from_numpy(trained.labels[i])
        key = bytes([i]) * 32
        hardening = DEFAULTS[row.name](key) if row.name in DEFAULTS else Hardening.recommended()
        said = ", ".join(repr(part) for part in (hardening.clip, hardening.noise) if part is not None)
        for found, how in zip(both, (Hardening.none(), hardening), strict=True):
            np.random.seed(0)  # noqa: NPY002 -- native explainers draw from it
            found.append(make(model, hardening=how).attribute(pool.x, target=target, **options).double().numpy())
        if i == 2 and all(np.array_equal(both[0][0], other) for other in both[0][1:]):
            raise Unasked
        progress(row.name, i + 1, len(trained.shadows.models))
    native, hardened = (np.stack(found) for found in both)
    features = int(pool.x.shape[1])
    explains = make.explains(model) or "probability"
    return Answers(native, hardened, explains, said, np.arange(features) if native.shape[2] == features else None)


class Unasked(Exception):
    """Three models gave the same answers: the explainer does not ask the model."""


# ---------------------------------------------------------------------------------------------------------- judgement


def judged(trained: Trained, maps: Floats, resamples: int) -> dict[str, Any]:
    """Members found by the labels alone and by the complete stack on labels and answers."""
    values = {k: v for k, v in trained.said.values.items() if k == "label"}
    each = [summarise(torch.from_numpy(rows)) for rows in maps]
    values |= {name: np.stack([found[name].numpy() for found in each]) for name in each[0]}
    signals = Signals(trained.shadows.membership, values, maps.astype(np.float32), {})
    weights = weights_of(maps.shape[1], resamples)
    mean = rates_of(signals, (1,), False, trained.task.targets, weights, FPRS, trained.known)
    labels = next(mean[row] for row in mean if row.baseline)
    stack = next(row for row in mean if row.name == "Stacked" and not row.baseline)
    always = next(row for row in mean if type(row.attack) is Always)
    others = [row for row in mean if row.role == "explanation+label" and type(row.attack) is Stacked]
    out: dict[str, Any] = {"labels": _pair(labels), "stack": _pair(mean[stack]), "always": _pair(mean[always]),
                           "adds": _pair(mean[stack] - labels)}  # fmt: skip
    added = {f"{row.name} on {row.signal}": _pair(mean[row] - labels)["tpr"] for row in others}
    best = max(added, key=lambda name: added[name]["value"])
    out["strongest"] = {"attack": best, **added[best]}
    out["at_most"] = max(found["value"] + ONE_SIDED * found["se"] for found in added.values())
    return out


def _pair(replicates: Floats) -> dict[str, dict[str, float]]:
    return {
        name: {"value": float(each[0]), "se": float(each[1:].std(ddof=1))}
        for name, each in zip(("auc", "tpr"), replicates, strict=True)
    }


def useful(trained: Trained, answers: Answers) -> dict[str, Any]:
    """Agreement with the native numbers, and deletion where they stand for parts of the input."""
    t, k = trained.task.targets, answers.native.shape[2]
    top = min(k, max(4, round(0.1 * k)))
    kept = utility(*(a[:t].reshape(-1, k) for a in (answers.native, answers.hardened)), top_fraction=top / k)
    out: dict[str, Any] = {"overlap": kept.top_overlap, "rank_correlation": kept.rank_correlation,
                           "cosine": kept.cosine}  # fmt: skip
    if answers.places is not None:
        for name, maps in (("native", answers.native), ("hardened", answers.hardened)):
            lost = [deletion(trained, i, maps[i], answers.places, top) for i in range(t)]
            out[f"deletion_{name}"] = float(np.mean(lost))
    return out


def deletion(trained: Trained, i: int, numbers: Floats, places: NDArray[np.int64], top: int) -> float:
    """How far the probability falls when the top numbers above 0 are taken away; among equals at random."""
    x = trained.task.pool.x
    draw = np.random.default_rng(0)
    order = draw.permutation(numbers.shape[1])
    place = np.argsort(np.argsort(-numbers[:, order], axis=1, kind="stable"), axis=1)
    chosen = np.zeros(numbers.shape, dtype=bool)
    chosen[:, order] = (place < top) & (numbers[:, order] > 0)
    keep = torch.from_numpy(~chosen[:, places]).float().view_as(x)
    target = torch.from_numpy(trained.labels[i])[:, None]
    with torch.no_grad():
        before, after = (trained.shadows.models[i](inputs) for inputs in (x, x * keep))
    before, after = (p if are_probabilities(p) else p.softmax(1) for p in (before, after))
    return float((before - after).gather(1, target).mean())


def measure(row: Row, tasks: Callable[[str], Trained], progress: Progress) -> dict[str, Any]:
    """Everything about one method, or why it cannot be measured."""
    start = time.process_time()
    reasons = []
    names = ("digits",) if row.entry == "attribute" and row.name not in TABLE_METHODS else ("heloc", "trees", "linear")
    for name in names:
        trained = tasks(name)
        try:
            answers = (of_maps if name == "digits" else of_rows)(row, trained, progress)
        except Unasked:
            return {
                "reason": "it compares the row with public rows and never asks the model: three models that were"
                " trained on different data gave the same answers, so that they tell nothing about training data"
            }
        except SafexplainError as error:
            reasons.append(str(error))
            continue
        except AssertionError as error:  # of Captum
            reasons.append(f"Captum {version('captum')} fails natively ({error})")
            continue
        except TypeError as error:  # of Alibi, beside a shap that it was not written for
            reasons.append(f"Alibi and shap {version('shap')} do not fit each other: {error}")
            continue
        native, hardened = (judged(trained, maps, RESAMPLES) for maps in (answers.native, answers.hardened))
        return {
            "task": name,
            "examples": len(trained.task.pool),
            "explains": answers.explains,
            "numbers": answers.native.shape[2],
            "hardening": answers.hardening,
            "labels": native.pop("labels"),
            "native": native,
            "hardened": {k: v for k, v in hardened.items() if k != "labels"},
            "utility": useful(trained, answers),
            "cpu_seconds": round(time.process_time() - start, 1),
        }
    return {"reason": "; ".join(dict.fromkeys(reasons))}


def main(argv: list[str] | None = None) -> int:
    """Run the suite."""
    run = Run(
        "explainers", __doc__, argv,
        method={"nargs": "+", "choices": tuple(CATALOG), "help": "these alone; others keep their results"},
    )  # fmt: skip
    warnings.simplefilter("ignore")
    options, parts, progress, ready = run.options, run.parts(__package__, *CODE), Progress(), dict[str, Trained]()

    def tasks(name: str) -> Trained:
        if name not in ready:
            ready[name] = Trained.of(task_of(name, run.quick, options.data), options.cache / "models", progress)
        return ready[name]

    methods = dict(run.earlier().get("methods", {}))
    for name in options.method or CATALOG:
        if name in SLOW and not options.method:
            reason = f"{SLOW[name]}: `python -m audit.suites.explainers --method {name}` does it, and was not run"
            methods.setdefault(name, {"reason": reason})
            continue
        methods[name] = parts.get([name, run.quick], lambda: measure(CATALOG[name], tasks, progress))  # noqa: B023
        print(f"{name}: {methods[name].get('reason', 'measured')}", flush=True)
    about = {
        name: {"examples": len(t.task.pool), "models": t.task.models, "targets": t.task.targets,
               "accuracy": t.accuracy(), "data": t.task.source}
        for name, t in ((name, tasks(name)) for name in SIZES)
    }  # fmt: skip
    results = {"tasks": about, "methods": {name: methods[name] for name in CATALOG if name in methods}}
    made = run.provenance()
    made["versions"] |= {name: _version(name) for name in ("alibi", "shap", "lime", "aix360")}
    run.write(fpr=FPRS[0], resamples=RESAMPLES, results=results, run=made)
    return run.end()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
