"""Scripts that ask about one example many times, each time a little differently.

An adaptive attacker knows public rows, the code and the quantile, and a model trained on public rows, but not the seed
of the service's directions. It changes the input by as little as makes nearly all of its questions count as new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from torch import nn

from safexplain.audit.queries import Dither, Queries
from safexplain.serve.budget import Likeness

from ..releases.tasks import Task, input_x_gradient

Floats = NDArray[np.floating[Any]]
QUERIES = 200
FEW_FEATURES = 8
NEAR_PAIRS, MARGIN = 1e-3, 1.2
"""Share of pairs of questions that may be nearer than the threshold, and how much further than that an attacker goes
because it does not know the directions."""


class Attacker:
    """What a script may know.

    Args:
        task: of `releases.tasks`.
        model: trained on public rows.
        quantile: of the service.
    """

    def __init__(self, task: Task, model: nn.Module, quantile: float) -> None:
        self.task, self.model = task, model
        public = flat(task.public.x.numpy())
        likeness = Likeness.of(public, quantile, seed="attacker")
        assert likeness is not None
        self.likeness = likeness
        self.low, self.high, self.deviation = public.min(0), public.max(0), public.std(0)
        pixels = task.image or task.name == "digits"
        self.unit = np.full_like(self.deviation, (self.high - self.low).max()) if pixels else self.deviation
        varying = np.where(self.high > self.low, self.deviation, np.inf)
        self.rare = np.isin(np.arange(len(varying)), np.argsort(varying, kind="stable")[:FEW_FEATURES])

    def maps(self, x: Floats) -> Floats:
        """(n, d) native maps of (n, d) inputs for the class of the first, by the model of public rows."""
        inputs = torch.from_numpy(x.astype(np.float32)).view(-1, *self.task.shape)
        with torch.no_grad():
            label = self.model(inputs[:1]).argmax(1)
        return input_x_gradient(self.model, inputs, label.expand(len(inputs))).numpy()

    def kept(self, x: Floats) -> float:
        """Mean cosine of the maps of dithered inputs with that of the plain one, the first row."""
        maps = self.maps(x).astype(np.float64)
        size = np.linalg.norm(maps, axis=1)
        return float(np.mean(maps[1:] @ maps[0] / np.maximum(size[1:] * size[0], 1e-30)))

    def unmoved(self, x: Floats) -> Floats:
        """(d, d // 2) orthonormal directions of the scaled input along which the map turns least."""
        inputs = torch.from_numpy(x.astype(np.float32)).view(1, *self.task.shape)
        with torch.no_grad():
            label = self.model(inputs).argmax(1)

        def direction(z: torch.Tensor) -> torch.Tensor:
            chosen = self.model(z).softmax(1)[0, label[0]]
            map_ = (torch.autograd.grad(chosen, z, create_graph=True)[0] * z).flatten()
            return map_ / map_.norm()

        jacobian = torch.autograd.functional.jacobian(direction, inputs, vectorize=True)  # type: ignore[no-untyped-call]
        step = self._step()
        moved = jacobian.view(len(step), len(step)).double().numpy() * step
        live = np.flatnonzero(step)
        vectors = np.zeros((len(step), len(step) // 2))
        vectors[live] = np.linalg.eigh(moved[:, live].T @ moved[:, live])[1][:, : len(step) // 2]
        return vectors

    def just_beyond(self, x: Floats, directions: Floats) -> Floats:
        """The least changes along these (n, d) directions by which nearly all pairs of questions are far apart."""
        near, far = 0.0, 1e6
        for _ in range(50):
            size = (near * far) ** 0.5 if near else far / 8
            pairs = pdist(self.likeness.sketch(self._moved(x, size * directions)))
            enough = np.quantile(pairs, NEAR_PAIRS) > self.likeness.threshold
            near, far = (near, size) if enough else (size, far)
        return self._moved(x, MARGIN * far * directions)

    def _moved(self, x: Floats, by: Floats) -> Floats:
        return np.clip(x + by, self.low, self.high)

    def _step(self) -> Floats:
        """(d,) change of each feature that is one unit of distance; 0 of those that never vary."""
        scale = self.likeness.scale
        return np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)


Script = Callable[[Attacker, int], Floats]
"""(attacker, index of an example) -> (QUERIES, d) dithered inputs."""


def dithered(dither: Dither) -> Script:
    """As audits ask."""

    def script(attacker: Attacker, row: int) -> Floats:
        queries = Queries.of(attacker.task.pool, dither)
        return np.concatenate([flat(queries([row], number).numpy()) for number in range(QUERIES)])

    return script


def drawn(change: Callable[[Attacker, Floats, np.random.Generator], Floats]) -> Script:
    """Of the plain input (d,) and a generator of the example's own."""

    def script(attacker: Attacker, row: int) -> Floats:
        x = flat(attacker.task.pool.x[row : row + 1].numpy())[0]
        return change(attacker, x, np.random.default_rng([0xD17E, row]))

    return script


def normal(draw: np.random.Generator, d: int) -> Floats:
    return draw.standard_normal((QUERIES, d))


SCRIPTS: dict[str, Script] = {
    "x exp(.1 z)": dithered(Dither("multiplicative", 0.1)),
    "x exp(.3 z)": dithered(Dither("multiplicative", 0.3)),
    "x + .1 s z": dithered(Dither("additive", 0.1)),
    "x + .5 s z": dithered(Dither("additive", 0.5)),
    "noise of .03": drawn(lambda a, x, draw: x + 0.03 * a.unit * normal(draw, len(x))),
    "uniform within .1": drawn(lambda a, x, draw: x + 0.1 * a.unit * draw.uniform(-1, 1, (QUERIES, len(x)))),
    "eight rare features, within .3": drawn(
        lambda a, x, draw: x + 0.3 * a.unit * a.rare * draw.uniform(-1, 1, (QUERIES, len(x)))
    ),
    "eight rare features, any value": drawn(
        lambda a, x, draw: np.where(a.rare, draw.uniform(a.low, a.high, (QUERIES, len(x))), x)
    ),
    "just beyond, steepest": drawn(lambda a, x, draw: a.just_beyond(x, normal(draw, len(x)) * a.likeness.scale)),
    "just beyond, same map": drawn(
        lambda a, x, draw: a.just_beyond(x, normal(draw, len(x) // 2) @ a.unmoved(x).T * a._step())
    ),
}
"""z is standard normal, s the standard deviation of a feature (of images: of all pixels); other sizes are in the range
of pixels of images, and in standard deviations of columns of tables. "Steepest" moves features by how much each counts,
which changes the input least for the distance."""


def flat(x: Floats) -> Floats:
    """(n, d) float64."""
    return x.reshape(len(x), -1).astype(np.float64)
