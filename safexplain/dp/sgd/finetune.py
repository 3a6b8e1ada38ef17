"""Fine-tuning within a privacy budget: model, data and (epsilon, delta, adjacency) in, model and statement out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from safexplain._digest import model_digest, weights_digest
from safexplain._privacy_loss import Adjacency, Epsilons
from safexplain._progress import Progress, as_stage, show_progress, silent
from safexplain._secure_random import GENERATOR
from safexplain._validate import check_number
from safexplain.dp.heads import (
    HeadOptimizer,
    HeadRecipe,
    Heads,
    add_noise,
    features,
    linear_head,
    separate_batches,
    train_heads,
)
from safexplain.dp.models.parameters import Trainable, select
from safexplain.dp.models.prepare import Mode, check_classes, check_loss, check_rows, outputs_of, prepare
from safexplain.dp.models.replacements import restore, train_mode
from safexplain.dp.sgd.clipping import AutoSClipping, Clipping, NoClipping
from safexplain.dp.sgd.sampling import (
    InMemory,
    Loss,
    Persons,
    Piece,
    Records,
    Source,
    gaussian,
    random_source,
    records_of,
)
from safexplain.dp.sgd.steps import MECHANISM
from safexplain.dp.sgd.train_loop import (
    NETWORK_LR,
    OptimizerChoice,
    Saver,
    TrainingBudget,
    TrainingConfig,
    TrainingPlan,
    cross_entropy,
    plan_training,
    train_network,
)
from safexplain.errors import ConfigurationError, InputError, PrivacyWarning
from safexplain.verdict.privacy_statement import PrivacyStatement

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # imported for plots only: training needs no matplotlib


EPOCHS, RATE = 20, 0.1
"""Default passes over the data, and default expected batch size as a share of the records: 200 steps."""


@dataclass(frozen=True, eq=False)
class DPFineTuned:
    """The result of a training; prints as a description of the model and its guarantee.

    Args:
        model: in eval mode, on the device where it was trained.
        statement: the guarantee, for certificates and model cards.
        skipped: number of examples left out because their gradient was not finite; no guarantee covers it.
        accuracy: of the model on the records of `compare`; None without them.
        comparison: what privacy costs in accuracy, for internal use: not printed with the rest, nor copied or pickled.
    """

    model: nn.Module
    statement: PrivacyStatement
    skipped: int
    accuracy: float | None = None
    comparison: Comparison | None = None

    def __str__(self) -> str:
        rows = {} if self.accuracy is None else {"Accuracy on other records": f"{self.accuracy:.3f}"}
        title = f"{type(self.model).__name__}, trained with differential privacy"
        return _two_columns(title, rows | self.statement.rows())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "comparison": None}


class DPFineTuner:
    """Trains a model with differential privacy.

    Noise is calibrated so that all steps together spend at most (epsilon, delta) under the adjacency. If only a linear
    classifier trains, features are computed once. Under torch.distributed, each process takes its share of every batch.

    Args:
        model: not changed; a copy is trained. A trainable BatchNorm is replaced by GroupNorm.
        data: a pair (x, y) of tensors or a map-style data set of (x, y); all of it counts as training data.
        epsilon: the budget; None, with `noise_multiplier`, for no limit.
        delta: smaller than one over the number of records; by default the smaller of 1e-5 and 0.1 / records.
        adjacency: under which epsilon is meant.
        epochs: expected passes over the data, 20 by default; or
        steps: of the optimizer.
        batch_size: expected size of a Poisson batch, by default a tenth of the records.
        noise_multiplier: used instead of a calibrated one; training stops before it would exceed epsilon.
        clipping: of each example's gradient.
        trainable: "all", "head", "last-block", "bias", "lora" or name patterns; see `safexplain.dp.models.parameters`.
        optimizer: "adam", "adamw", "sgd", or a function of the list of parameters.
        lr: learning rate of a named optimizer; by default 5e-4, or for a linear head that trains alone with Adam .15
            over the typical norm of its inputs, which the first step measures with the same noise.
        loss: outputs and targets -> the loss of each example; cross-entropy by default.
        mode: how per-example gradients are computed; by default "ghost" (least memory), or "hooks" for clipping per
            layer and for `groups`.
        piece: largest number of examples in memory at a time.
        groups: the person of each record, a whole number or text. The guarantee then covers persons with all their
            rows: `batch_size` and `delta` are of persons, whose mean gradient is clipped once.
        rows_per_group: largest number of rows of a person in one step, drawn at random from more; 16 by default. A
            public constant, not read off the data.
        device: where to train; by default a GPU if there is one.
        pretrained: whether the starting weights were trained on other data, then stated as unprotected.
        workers: processes that load a data set.
        seed: makes batches and noise repeatable, for experiments: anyone who knows it can remove the noise.
        checkpoint: file to save to, and to continue from if it exists.
        checkpoint_seconds: time between saves.
        progress: called with steps and epsilon spent; None shows a bar on a terminal.

    Raises:
        ConfigurationError: options that contradict each other or cannot be met.
        InputError: data or a model that cannot be trained with DP; unsupported layers are listed with remedies.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        epsilon: float | None,
        delta: float | None = None,
        adjacency: Adjacency = "substitute",
        epochs: float | None = None,
        steps: int | None = None,
        batch_size: float | None = None,
        noise_multiplier: float | None = None,
        clipping: Clipping | None = None,
        trainable: Trainable = "all",
        optimizer: OptimizerChoice = "adam",
        lr: float | None = None,
        loss: Loss = cross_entropy,
        mode: Mode | None = None,
        piece: int = 64,
        groups: Any = None,
        rows_per_group: int | None = None,
        device: str | torch.device | None = None,
        pretrained: bool = True,
        workers: int = 0,
        seed: int | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 60.0,
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
        if rows_per_group is not None and groups is None:
            raise ConfigurationError("rows_per_group: needs groups=, the person of each record")
        self.records = records_of(data, workers)
        clipping = clipping or AutoSClipping()
        limit = min(16, piece) if rows_per_group is None else rows_per_group
        self.persons = None if groups is None else Persons(groups, len(self.records), limit)
        units = len(self.persons or self.records)
        batch_size = max(RATE * units, 1.0) if batch_size is None else batch_size
        if self.persons is not None:
            _check_persons(self.persons, batch_size, piece, mode)
        delta = min(1e-5, 0.1 / units) if delta is None else delta
        budget = TrainingBudget(epsilon, delta, adjacency, noise_multiplier)
        epochs = EPOCHS if epochs is None and steps is None else epochs
        self.plan = plan_training(budget, units, batch_size, epochs=epochs, steps=steps)
        by_example = self.persons is not None or getattr(clipping, "per_layer", False)
        mode = mode or ("hooks" if by_example else "ghost")
        self.config = TrainingConfig(clipping, optimizer, lr, loss, mode, piece, seed)
        self.device = _device(device)
        self.trainable, self.pretrained = trainable, pretrained
        self.checkpoint, self.checkpoint_seconds, self.progress = checkpoint, checkpoint_seconds, progress
        self._start = model

    def __repr__(self) -> str:
        title = f"{type(self._start).__name__}, to be trained with differential privacy"
        return _two_columns(title, self.statement.rows())

    @property
    def statement(self) -> PrivacyStatement:
        """The guarantee that `fit` will give, known before training; it lacks only the digest of the weights."""
        plan, seeded = self.plan, self.config.seed is not None
        return PrivacyStatement(
            mechanism=MECHANISM,
            records=plan.records,
            delta=plan.budget.delta,
            phases=(plan.phase(),),
            clipping=repr(self.config.clipping),
            expected_batch_size=plan.expected_batch_size,
            trained=self._trained_parameters(),
            pretrained=self.pretrained,
            seeded=seeded,
            generator="" if seeded else GENERATOR,
            unit="record" if self.persons is None else "person",
            rows_per_person=None if self.persons is None else self.persons.max_rows,
        )

    def fit(self, compare: Any = None, epsilons: Iterable[float] = ()) -> DPFineTuned:
        """Train, continuing from the checkpoint if there is one.

        With `compare`, the same training is repeated for each of `epsilons`, and without clipping and noise. **No
        statement covers the model without privacy or its accuracy**: keep that accuracy internal. The result holds only
        the accuracies of the other models, as each would be a separate release.

        Args:
            compare: records with classes, in the form of `data` but not part of it, to compute accuracy on; they are
                not protected.
            epsilons: further budgets to compare, under the same adjacency and delta.

        Raises:
            InputError: the weights became NaN or infinite, the checkpoint is of another training, or `compare` has no
                accuracy.
            ConfigurationError: an epsilon that cannot be met, or epsilons without `compare`.
            KeyboardInterrupt: after saving the checkpoint, if any.

        Warns:
            PrivacyWarning: layers were replaced, the budget ends before the requested steps, or gradients were not
                finite.
        """
        if self.plan.steps < self.plan.requested_steps:
            _warn(
                f"epsilon {self.plan.budget.epsilon:g} is spent after {self.plan.steps} of {self.plan.requested_steps}"
                f" steps with noise multiplier {self.plan.noise_multiplier:g}; training stops there"
            )
        if self.persons is not None and self.persons.over_limit:
            _warn(
                f"{self.persons.over_limit:,} of {len(self.persons):,} persons have more than {self.persons.max_rows}"
                f" rows; each step draws {self.persons.max_rows} of theirs at random. Raise rows_per_group to use more"
            )
        records = None if compare is None else records_of(compare)
        others = self._comparison_tuners(records, epsilons)
        feature_cache: dict[str, Tensor] = {}
        with ExitStack() as stack:
            progress = self.progress or stack.enter_context(show_progress())
            model, skipped = self._train_copy(progress, feature_cache)
            if skipped:
                owners = "single examples" if self.persons is None else "persons"
                _warn(f"{skipped} gradients of {owners} were not finite and were left out; check the data")
            done = DPFineTuned(model, replace(self.statement, weights=weights_digest(model)), skipped)
            if records is None:
                return done
            accuracy = accuracy_of(model, records, self.config.piece)
            trainings = [Compared(done.statement.epsilons, self.plan.noise_multiplier, accuracy)]
            for number, other in enumerate(others, 1):
                stage = f"comparing: training {number} of {len(others)}"
                model, _ = other._train_copy(as_stage(progress, stage), feature_cache)
                spent = None if isinstance(other.config.clipping, NoClipping) else other.statement.epsilons
                other_accuracy = accuracy_of(model, records, self.config.piece)
                trainings.append(Compared(spent, other.plan.noise_multiplier, other_accuracy))
        adjacency = self.plan.budget.adjacency
        trainings.sort(key=lambda t: math.inf if t.epsilons is None else t.epsilons.of(adjacency))
        return replace(done, accuracy=accuracy, comparison=Comparison(tuple(trainings), adjacency, len(records)))

    def _train_copy(self, progress: Progress, feature_cache: dict[str, Tensor]) -> tuple[nn.Module, int]:
        model = self.prepared()
        skipped = self._train(model, progress, feature_cache)
        return restore(model).requires_grad_(True).eval(), skipped

    def _comparison_tuners(self, records: Records | None, epsilons: Iterable[float]) -> list[DPFineTuner]:
        """The trainings to compare with, all planned before the first; the last one is without privacy."""
        plan = self.plan
        further = sorted({check_number("epsilons", e, above=0.0) for e in epsilons} - {plan.budget.epsilon})
        if records is None:
            if further:
                raise ConfigurationError("epsilons: needs compare=, the records to compute accuracies on")
            return []
        _count_correct(self.prepared(), next(records.pieces([[0]])))  # fails early if there is no accuracy
        others = [self._silent_copy() for _ in (*further, None)]
        for other, epsilon in zip(others, further, strict=False):
            budget = replace(plan.budget, epsilon=epsilon, noise_multiplier=None)
            other.plan = plan_training(budget, plan.records, plan.expected_batch_size, steps=plan.steps)
        others[-1].plan = replace(plan, noise_multiplier=0.0)
        others[-1].config = replace(self.config, clipping=NoClipping())
        return others

    def _silent_copy(self) -> DPFineTuner:
        other = copy(self)
        other.checkpoint, other.progress = None, silent
        return other

    def with_data(self, data: Any, *, seed: int) -> DPFineTuner:
        """The same plan, starting weights and persons with other data of the same size; no checkpoint, no progress."""
        records = records_of(data)
        if len(records) != len(self.records):
            raise InputError(f"data: expected {len(self.records)} records, as planned for, got {len(records)}")
        other = self._silent_copy()
        other.records, other.config = records, replace(self.config, seed=seed)
        return other

    def again(self, data: Any, *, seed: int) -> DPFineTuner:
        """Deprecated name of `with_data`."""
        warnings.warn("DPFineTuner.again: use with_data", DeprecationWarning, stacklevel=2)
        return self.with_data(data, seed=seed)

    def _trained_parameters(self) -> str:
        if self.trainable == "lora":
            return "low-rank adapters and the head"
        sizes = {name: p.numel() for name, p in self._start.named_parameters()}
        count = sum(sizes[name] for name in select(self._start, self.trainable))
        chosen = self.trainable if isinstance(self.trainable, str) else ", ".join(map(str, self.trainable))
        return f"{chosen}: {count:,} of {sum(sizes.values()):,} parameters"

    def prepared(self) -> nn.Module:
        """A checked copy of the model, ready to train: layers replaced, other parameters frozen."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            if self.config.seed is not None:
                torch.manual_seed(self.config.seed)
            model = prepare(self._start, self.trainable, mode=self.config.mode).to(self.device)
            x, y = next(self.records.pieces([list(range(min(3, len(self.records))))]))
            parts = x if isinstance(x, tuple) else (x,)
            rows = tuple((torch.randn_like(p) if p.is_floating_point() else p).to(self.device) for p in parts)
            outputs = outputs_of(model, rows)
            if self.config.loss is cross_entropy and isinstance(self.records, InMemory):
                check_classes(outputs, self.records.y)
            if len(y) > 1:
                check_rows(model, rows, mode=self.config.mode)
                parameters = [p for p in model.parameters() if p.requires_grad]
                check_loss(self.config.loss, outputs, y.to(self.device), parameters)
        return train_mode(model)

    def _train(self, model: nn.Module, progress: Progress, feature_cache: dict[str, Tensor]) -> int:
        trained, records = model, self.records
        if has_closed_form(model, records, self.config):
            folder = None if self.checkpoint is None else Path(f"{self.checkpoint}.features")
            given = cast(InMemory, records)
            problem = head_problem(model, given, self.plan, self.config, cache=folder, computed=feature_cache)
            if self.persons is None:
                train_head(problem, given.y, self.plan, self.config, progress=progress)
                return 0
            trained, records = problem.layer.train(), InMemory(problem.x, given.y.to(problem.x.device).long())
        purpose = {
            "model": model_digest(self._start).hex(),
            "data": self.records.digest(),
            "statement": self.statement.to_dict(),
            **self.config.purpose(),
            **({} if self.persons is None else {"groups": self.persons.digest()}),
        }
        saver = Saver(self.checkpoint, purpose, self.checkpoint_seconds)
        return train_network(trained, records, self.plan, self.config, saver, progress, self.persons)


def _device(name: str | torch.device | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigurationError(
            f"device: expected cpu, or cuda on a machine with a GPU, got {name}, which cannot be used"
            f" ({str(error).splitlines()[0]})"
        ) from None
    return torch.device(name)


def _check_persons(persons: Persons, batch_size: float, piece: int, mode: Mode | None) -> None:
    if mode == "ghost":
        raise ConfigurationError(
            'mode: with groups=, expected "hooks" or "functorch", got "ghost", which has norms of rows only'
        )
    if batch_size > len(persons):
        raise ConfigurationError(
            f"batch_size: with groups=, expected a number of persons, at most {len(persons):,}, got {batch_size:g}"
        )
    if persons.max_rows > piece:
        raise ConfigurationError(
            f"rows_per_group: expected at most piece, {piece}, as a person's rows go together, got {persons.max_rows}"
        )


def _two_columns(title: str, rows: Mapping[str, str]) -> str:
    width = max(map(len, rows))
    return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows.items())])


def _warn(message: str) -> None:
    warnings.warn(message, PrivacyWarning, stacklevel=3)


# --- comparison ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """One training, and the share of the other records that it classifies correctly; no epsilons without privacy."""

    epsilons: Epsilons | None
    noise_multiplier: float
    accuracy: float


@dataclass(frozen=True)
class Comparison:
    """Accuracy with and without privacy, by the same training on the same records; for internal use. Prints as a table.

    `trainings` are in order of epsilon, the one without privacy last; `records` is the number that accuracy was
    computed on.
    """

    trainings: tuple[Compared, ...]
    adjacency: Adjacency
    records: int

    def half_width(self, accuracy: float) -> float:
        """Half of the 95 % interval of an accuracy on this number of records (normal approximation)."""
        return 1.96 * math.sqrt(accuracy * (1 - accuracy) / self.records)

    def __str__(self) -> str:
        lines = [
            f"Accuracy on {self.records:,} other records, by the epsilon of the training",
            f"  {'added or removed':>16}  {'substituted':>11}  {'noise':>7}  accuracy",
        ]
        for t in self.trainings:
            e = t.epsilons
            one, other = ("none", "none") if e is None else (f"{e.add_remove:.2f}", f"{e.substitute:.2f}")
            found = f"{t.accuracy:.3f} ± {self.half_width(t.accuracy):.3f}"
            lines.append(f"  {one:>16}  {other:>11}  {t.noise_multiplier:>7.3g}  {found}")
        return "\n".join(
            [
                *lines,
                "For internal use only: no statement covers the accuracy without privacy, and each further epsilon is"
                " another training on\nthe same records.",
            ]
        )

    def plot(self, path: str | Path | None = None) -> Figure:
        """A figure of accuracy against epsilon under the training's adjacency, with 95 % intervals.

        Args:
            path: file to save to; its suffix sets the format.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        found = {t.epsilons and t.epsilons.of(self.adjacency): t.accuracy for t in self.trainings}
        without, (at, private) = found.pop(None), zip(*found.items(), strict=True)
        axes.errorbar(at, private, [*map(self.half_width, private)], marker="o", color="#e8743b", label="with privacy")
        w = self.half_width(without)
        axes.axhline(without, color="#8b8f98", linestyle=":", label="without")
        axes.axhspan(without - w, without + w, color="#8b8f98", alpha=0.15)
        axes.set(xscale="log", xlabel=f"epsilon ({self.adjacency})", ylabel=f"accuracy, {self.records:,} other records")
        axes.set_xticks(at, [f"{e:.3g}" for e in at], minor=False)
        axes.minorticks_off()
        axes.legend(frameon=False, loc="lower right")
        axes.spines[["top", "right"]].set_visible(False)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def accuracy_of(model: nn.Module, records: Records, piece: int) -> float:
    """Share of the records whose class has the model's largest output; InputError without (rows, classes) outputs."""
    numbers = range(len(records))
    pieces = records.pieces([*numbers[start : start + piece]] for start in range(0, len(records), piece))
    return sum(_count_correct(model, one) for one in pieces) / len(records)


def _count_correct(model: nn.Module, piece: Piece) -> int:
    x, y = piece
    device = next(model.parameters()).device
    outputs = outputs_of(model, tuple(part.to(device) for part in (x if isinstance(x, tuple) else (x,))))
    if not isinstance(outputs, Tensor) or outputs.dim() != 2:
        kind = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(f"compare: accuracy needs outputs of shape (rows, classes), got {kind}; leave compare out")
    check_classes(outputs, y)
    return int((outputs.argmax(1).cpu() == y.cpu()).sum())


# --- a head alone -----------------------------------------------------------------------------------------------------


LR = 0.15
"""Learning rate of Adam for inputs of norm 1; docs/evidence/dp_defaults.md compares it with a search."""

OCTAVES = 16.0


def trainable_linear(model: nn.Module) -> str | None:
    """Name of the `nn.Linear` that holds all trainable parameters; None if there is no such layer."""
    training = [name for name, p in model.named_parameters() if p.requires_grad]
    name = training[0].rpartition(".")[0] if training else ""
    layer = model.get_submodule(name)
    whole = isinstance(layer, nn.Linear) and training == [f"{name}.{part}" for part, _ in layer.named_parameters()]
    return name if name and whole else None


def has_closed_form(model: nn.Module, records: Records, config: TrainingConfig) -> bool:
    """Whether only a linear output layer trains, on tensors and in one process."""
    return (
        config.loss is cross_entropy
        and config.optimizer in ("adam", "sgd")
        and not config.clipping.per_layer
        and not (torch.distributed.is_available() and torch.distributed.is_initialized())
        and isinstance(records, InMemory)
        and isinstance(records.x, Tensor)
        and (name := trainable_linear(model)) is not None
        and is_output_layer(model, name, records.x[:2])
    )


def is_output_layer(model: nn.Module, name: str, like: Tensor) -> bool:
    """Whether the model returns this layer's output unchanged, tried on noise in the shape of these rows."""
    outputs: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_hook(lambda _, __, output: outputs.append(output))
    rows = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)) if like.is_floating_point() else like
    try:
        with torch.no_grad():
            output = model(rows.to(like.dtype).to(next(model.parameters()).device))
    finally:
        hook.remove()
    return len(outputs) == 1 and isinstance(output, Tensor) and torch.equal(output, outputs[0])


@dataclass
class HeadProblem:
    """A training of a head alone, from its inputs x (n, d)."""

    layer: nn.Linear
    x: Tensor
    recipe: HeadRecipe
    initial: Heads


def head_problem(
    model: nn.Module,
    records: InMemory,
    plan: TrainingPlan,
    config: TrainingConfig,
    *,
    cache: Path | None,
    computed: dict[str, Tensor] | None = None,
) -> HeadProblem:
    """The training of the head on the features of the records; `computed` keeps them for another one."""
    head_name = trainable_linear(model) or ""
    head = linear_head(model, head_name)
    device = head.weight.device
    recipe = HeadRecipe(
        classes=head.out_features,
        steps=plan.steps,
        sample_rate=plan.sample_rate,
        expected_batch_size=plan.expected_batch_size,
        clipping=config.clipping,
        lr=config.lr or NETWORK_LR,
        optimizer=cast(HeadOptimizer, config.optimizer),
        bias=head.bias is not None,
    )
    bias = torch.zeros(head.out_features, device=device) if head.bias is None else head.bias.detach()
    computed = {} if computed is None else computed
    if "x" not in computed:
        computed["x"] = features(model, head_name, cast(Tensor, records.x), cache=cache).to(device)
    return HeadProblem(head, computed["x"], recipe, Heads(head.weight.detach()[None], bias[None]))


def train_head(
    problem: HeadProblem, labels: Tensor, plan: TrainingPlan, config: TrainingConfig, *, progress: Progress
) -> None:
    """Train the head in place, from its present weights; InputError: no output for a label, or weights diverged."""
    source, recipe = random_source(config.seed, problem.x.device), problem.recipe
    if config.lr is None and recipe.optimizer == "adam" and recipe.steps > 1:
        norm = typical_norm(problem.x, recipe, plan.noise_multiplier, source)
        recipe = replace(recipe, lr=LR / norm, steps=recipe.steps - 1)

    def report(stage: str, done: float, total: float, note: str = "") -> None:
        progress(stage, done, total, plan.spent_text(round(done) + plan.steps - recipe.steps))

    trained = train_heads(
        problem.x,
        labels,
        recipe,
        noise_multiplier=plan.noise_multiplier,
        initial=problem.initial,
        generator=source,
        progress=progress if progress is silent else report,
    )
    with torch.no_grad():
        problem.layer.weight.copy_(trained.weight[0])
        if problem.layer.bias is not None:
            problem.layer.bias.copy_(trained.bias[0])


def typical_norm(x: Tensor, recipe: HeadRecipe, noise_multiplier: float, source: Source) -> float:
    """The geometric mean of the norms of rows, measured privately at the price of one step of DP-SGD.

    The right learning rate of Adam is inversely proportional to it. As in any step, each example of a Poisson batch
    adds a vector of norm at most C, the clipping bound, and the sum gets noise of noise_multiplier times C; all numbers
    of that vector are 0 but one: C log2(norm) / 16, cut to [-C, C]. The result is in [2^-16, 2^16].
    """
    bound = 1.0 if recipe.clipping is None else recipe.clipping.bound
    everyone = torch.ones(1, len(x), dtype=torch.bool, device=x.device)
    ((index, weight),) = separate_batches(recipe.sample_rate, everyone, 1, source)
    octaves = torch.linalg.vector_norm(x.float(), dim=1).log2().div(OCTAVES).clamp(-1.0, 1.0)
    drawn = octaves if index is None else octaves[index]
    total = torch.zeros(1, recipe.outputs, x.shape[1] + recipe.bias, device=x.device)
    total[0, 0, 0] = bound * (drawn if weight is None else drawn * weight[0]).sum()
    if noise_multiplier:
        total = add_noise(total, gaussian(total, noise_multiplier * bound, source), index, weight, len(x))
    mean = float(total[0, 0, 0]) / bound / recipe.expected_batch_size
    return float(2.0 ** (OCTAVES * min(max(mean, -1.0), 1.0)))
