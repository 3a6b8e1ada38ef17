"""Small models, a hardening with a fixed key, and the catalog as test parameters."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from certificates import CERTIFIED, CONTROLS, ONCE
from torch import nn

from safexplain._digest import model_digest
from safexplain._versions import versions
from safexplain.explain import CATALOG, default_layer
from safexplain.explain.hardened import HARDENED
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import STREAM, GaussianNoise
from safexplain.verdict.certificate.write import statement, write_json
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.words import written

KEY = b"a key of thirty-two bytes, fixed"
NOISY = Hardening(noise=GaussianNoise(0.05, key=KEY), grid=2.0**-20)
NEEDY = ("LRP", "TokenIG")
"""Methods of models of a kind of their own."""
ROWS = [row for row in CATALOG.values() if row.entry == "attribute" and row.of == "input" and row.name not in NEEDY]
rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
TORCH_ROWS = [row for row in CATALOG.values() if row.in_base]
torch_rows = pytest.mark.parametrize("row", TORCH_ROWS, ids=lambda row: row.name)

quiet = pytest.mark.filterwarnings(
    "ignore:Setting backward hooks on ReLU",
    "ignore:Setting forward, backward hooks",
    "ignore:You are providing multiple inputs for Lime",
    "ignore:Input Tensor . did not already require gradients",
    "ignore:The neuron_selector provided is a callable",
)


def image_net(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 16, 5)).eval()


def images(batch=4, seed=1):
    return torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


class PlainConv(nn.Module):
    """As `image_net`, flattened by a function: of modules that LRP has rules for."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.relu, self.second = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3)
        self.last, self.head = nn.ReLU(), nn.Linear(4 * 16, 5)

    def forward(self, x):
        return self.head(self.last(self.second(self.relu(self.first(x)))).flatten(1))


class Sum(nn.Module):
    """One number for an example, so that no target is chosen."""

    def __init__(self, seed=0):
        super().__init__()
        self.net = image_net(seed)

    def forward(self, x):
        return self.net(x).sum(1)


class Texts(nn.Module):
    """Logits from token numbers, which it makes of any number."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.head = nn.Embedding(9, 4), nn.Sequential(nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
        self(images())

    def forward(self, x):
        return self.head(self.embedding((3 * x).round().long().remainder(9)))


def net_for(row, seed=0):
    """A model that the row's method can explain, natively too."""
    if row.name == "TokenIG":
        return Texts(seed).eval()
    if row.name == "LayerFeaturePermutation":  # Captum 0.9.0 chooses the target twice
        return Sum(seed).eval()
    return PlainConv(seed).eval() if row.name in ("LRP", "LayerLRP") else image_net(seed)


def target_for(row, target=1):
    """The target as an argument of the row's entry, if it takes one that works."""
    return {"target": target} if row.target and row.name != "LayerFeaturePermutation" else {}


class TwoInputs(nn.Module):
    """Logits from an image and a vector."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.image = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 6))
        self.vector = nn.Linear(5, 6)
        self.relu = nn.ReLU()
        self.head = nn.Linear(6, 3)

    def forward(self, image, vector):
        return self.head(self.relu(self.image(image) + self.vector(vector)))


class Gate(nn.Module):
    """Identity in which a thread called "explainer" waits until another has done its work."""

    entered = threading.Event()
    passed = threading.Event()

    def forward(self, x):
        if threading.current_thread().name == "explainer":
            Gate.entered.set()
            Gate.passed.wait(20)
        return x


def hardened_class(row):
    """The hardened class, as a function of a model: methods of layers get the default layer."""
    kind = HARDENED[row.name]
    return kind if row.of == "input" else Layered(kind)


class Layered:
    """A hardened class of a layer method, called with the model alone."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, model, **options):
        return self.kind(model, default_layer(model), **options)


def options_of(row, inputs):
    """The plain choice of options; of several inputs, of each."""
    if not isinstance(inputs, tuple):
        return row.options(inputs)
    each = [row.options(x) for x in inputs]
    several = {name: isinstance(value, torch.Tensor | tuple) for name, value in each[0].items()}
    return {name: tuple(one[name] for one in each) if own else each[0][name] for name, own in several.items()}


def run(explainer, row, inputs, target=1, **options):
    """One call with everything random pinned down."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - captum's GradientShap draws from it
    options = {**target_for(row, target), **options}
    return explainer.attribute(inputs, **{**options_of(row, inputs), **options})


def tensors(result):
    return result if isinstance(result, tuple) else (result,)


def certificate(path, model, **changes):
    """A certificate about a model, with a hardening that has noise unless told otherwise."""
    named = changes.pop("named", {})
    policy = replace(ONCE, release=changes.pop("release", ONCE.release))
    references, hardening = changes.pop("references", 16), changes.pop("hardening", Hardening.ranked())
    evidence = tuple(e for e in CERTIFIED.evidence if policy == ONCE or e.role != "loss")  # which finds more there
    judgement = Judgement(policy, evidence, 5000, 5000, references, CONTROLS, uses=1)
    explainer = {"method": "IG", "output": "probability", "options": {"n_steps": 7}} | changes.pop("explainer", {})
    content = statement(
        subject={"model.pt": {"safexplainModelDigest": changes.pop("digest", model_digest(model).hex())} | named},
        explainer=explainer,
        hardening=hardening.to_dict(),
        noise_stream=changes.pop("noise_stream", STREAM if hardening.noise else None),
        audit={**judgement.to_dict(), **written(judgement)},
        utility=None,
        materials={},
        environment=versions() | changes.pop("environment", {}),
    )
    assert not changes
    return write_json(path / "certificate.json", content)
