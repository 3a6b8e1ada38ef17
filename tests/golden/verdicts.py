"""Verdicts on files of signals and of a small audit, for the record: names, numbers and outcomes, no sentences."""

import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from safexplain import HardenedInputXGradient, Hardening, audit

Floats = NDArray[np.float64]


def called(*arguments: str) -> tuple[int, str]:
    from safexplain.cli import main as safexplain_main

    before, told = sys.argv, io.StringIO()
    sys.argv = ["safexplain", *arguments]
    try:
        with redirect_stdout(told):
            safexplain_main()
    except SystemExit as ended:
        return int(ended.code or 0), told.getvalue()
    finally:
        sys.argv = before
    return 0, told.getvalue()


@contextmanager
def empty_folder() -> Iterator[None]:
    """A folder to be in for a while, which also holds the count of verdicts on the same examples."""
    uses = {"SAFEXPLAIN_USES": "uses.sqlite"}
    with tempfile.TemporaryDirectory() as folder, chdir(folder), patch.dict(os.environ, uses):
        yield


ROUNDED = ("attacks", "bounds", "bound")
"""Entries of an outcome whose numbers rounding may move; all others, and the names of attacks, are exact."""


def outcome(content: Mapping[str, Any]) -> dict[str, Any]:
    """Of a result's JSON: verdict, sizes, controls, and for each attack whole counts of members and bounds of rates."""
    asked = ("verdict", "claim", "split", "splits", "members", "non_members", "grouped", "references")
    attacks = sorted(content["evidence"], key=lambda e: (e["level"], e["attack"], e["signal"]))
    counts, bounds = {}, {}
    for e in attacks:
        name = f"{e['attack']} on {e['signal']}, {e['level']}x {e['role']}{', judged' if e['judged'] else ''}"
        counts[name] = [round(e[count]) for count in ("found", "upper_bound_count", "lower_bound_count")]
        added = e["added"] or {}
        bounds[name] = [rate if rate is None else round(rate, 4) for rate in (e["low"], e["high"], *added.values())]
    deciding = {str(at["patience"]): [(at[what] or {}).get("attack") for what in ("added", "whole")]
                for at in content["levels"]}  # fmt: skip
    return {
        **{name: content[name] for name in (*asked, "omitted", "target", "targets")},
        "limit": round(content["limit"], 6),
        "bound": round(content["bound"], 4),
        "deciding": deciding,
        "controls": dict(sorted((control["name"], control["failed"]) for control in content["controls"])),
        "attacks": counts,
        "bounds": bounds,
        "slices": {
            part["name"]: sorted([row["value"], row["members"]] for row in part["rows"]) for part in content["slices"]
        },
        "others": [outcome(other) for other in content["others"]],
    }


def commanded(*arguments: str) -> dict[str, Any]:
    found = told(*called(*arguments, "--references", "8", *ASKED))
    stated = json.loads(Path("run/certificate.json").read_text())["predicate"]
    return {**found, "explainer": stated["explainer"]["method"]}


def told(code: int, text: str) -> dict[str, Any]:
    """What `audit --json` printed, and its exit code: the judged release, and those that it is compared with."""
    assert code in (0, 1, 3), text
    content = json.loads(text)
    compared = {name: outcome(result) for name, result in content["compared"].items()}
    return {"exit code": code, "released": outcome(content), "compared": compared}


class Drawn:
    """What models would answer about n examples in three classes, and who was a member of what."""

    def __init__(self, seed: int, models: int = 10, examples: int = 600) -> None:
        self.rng = np.random.default_rng([36, seed])
        self.shape = models, examples
        self.member = self.rng.random(self.shape) < 0.5
        self.own = self.rng.integers(0, 3, examples)
        self.inputs = self.rng.integers(0, 4096, (examples, 5)).astype(np.float32)

    def number(self, leak: float = 0.0, *more: int) -> Floats:
        """(m, n, ...) numbers that differ between examples, and by `leak` standard deviations for members."""
        of_example = self.rng.standard_normal((1, self.shape[1], *more))
        of_answer = 0.5 * self.rng.standard_normal((*self.shape, *more))
        return of_example + of_answer + 0.5 * leak * self.member.reshape(*self.shape, *(1 for _ in more))

    def size(self, leak: float = 0.0, *more: int) -> Floats:
        """The same above 0, less for members."""
        return np.exp(self.number(-leak, *more))

    def label(self, right: float = 0.85, members: float = 0.85) -> Floats:
        """(m, n) predicted classes: how many are right of non-members, and of members."""
        is_right = self.rng.random(self.shape) < np.where(self.member, members, right)
        return np.where(is_right, self.own, (self.own + 1) % 3).astype(float)

    def shares(self, level: int, label: Floats, leak: float = 0.0) -> dict[str, Floats]:
        """Of so many queries, how many got each label and how many that of the plain query."""
        sure = 0.9 / (1 + np.exp(-self.number(leak) - 2))[..., None]
        p = sure * np.eye(3)[label.astype(int)] + (1 - sure) / 3
        got = self.rng.multinomial(level, p) / level
        kept = np.take_along_axis(got, label.astype(int)[..., None], 2)[..., 0]
        return {f"kept@{level}": kept, f"shares@{level}": got}

    def file(self, maps: Floats | None = None, meta: Mapping[str, Any] | None = None, **values: Any) -> audit.Signals:
        """Signals about model 0, with inputs unless `inputs=None` is among them."""
        columns = ("inputs", "groups", "slices", "out_of_distribution")
        given = {name: values.pop(name) for name in columns if name in values}
        given.setdefault("inputs", self.inputs)
        values = {name.replace("_at_", "@"): v for name, v in values.items()}
        return audit.Signals(self.member, values, maps, {"targets": [0], **(meta or {})}, **given)


Case = tuple[audit.Signals, audit.Policy]

EASY: dict[str, Any] = {"fpr": 0.1, "max_tpr": 0.35, "patience": (1,), "uncounted": True}


def policy(**changes: Any) -> audit.Policy:
    """One by which several hundred examples decide."""
    return audit.Policy(**{**EASY, **changes})


def nothing_leaks() -> Case:
    d = Drawn(1, examples=1200)
    return d.file(l1=d.size(), mean=d.number(), positive=d.rng.random(d.shape), label=d.label()), policy()


def strong_leak_by_default() -> Case:
    d = Drawn(2, models=9, examples=1000)
    return d.file(l1=d.size(3.0), mean=d.number(), label=d.label()), audit.Policy(patience=(1,), uncounted=True)


def leak_in_an_unknown_signal() -> Case:
    d = Drawn(3)
    return d.file(l1=d.size(), label=d.label(), my_number=d.number(2.5)), policy()


def losses_alone() -> Case:
    d = Drawn(4, models=12)
    return d.file(loss=d.size(1.2), margin=d.number(1.0), label=d.label()), policy(release="prediction")


def leak_of_labels_alone() -> Case:
    d = Drawn(5, examples=1000)
    return d.file(l1=d.size(), label=d.label(0.55, 0.98), inputs=None), policy()


def at_two_levels() -> Case:
    d = Drawn(6)
    label = d.label()
    values = {"l1": d.size(0.6), "l1@32": d.size(1.0), "label": label, **d.shares(32, label, 0.7)}
    return d.file(**values), policy(patience=(1, 32))


def signs_of_maps() -> Case:
    d = Drawn(8, examples=400)
    turned = np.where(d.rng.random((*d.shape, 12)) < 0.5 - 0.35 * d.member[..., None], -1, 1)
    pattern = np.sign(d.rng.standard_normal((1, d.shape[1], 12)))
    maps = (np.abs(d.rng.standard_normal((*d.shape, 12))) * turned * pattern).astype(np.float32)
    return d.file(maps, {"shape": [12]}, l1=np.abs(maps).sum(2).astype(float), label=d.label()), policy()


def groups() -> Case:
    d = Drawn(10, examples=900)
    d.member = d.member[:, np.arange(900) // 3]
    return d.file(l1=d.size(2.0), label=d.label(), groups=np.arange(900) // 3), policy()


def two_targets() -> Case:
    d = Drawn(11)
    leak = np.array([0.3, 2.5, *[1.0] * 8])[:, None]
    l1 = np.exp(d.number() - 0.5 * leak * d.member)
    return d.file(meta={"targets": [0, 1]}, l1=l1, label=d.label()), policy()


def recourse_distances() -> Case:
    d = Drawn(12, models=9, examples=500)
    signed = d.number(1.5)
    values = {"distance": np.abs(signed), "signed_distance": signed, "score": -signed + 0.2 * d.number()}
    values |= {"recovered_margin": d.number(0.8), "regressed_margin": d.number(0.5), "label": (signed < 0) * 1.0}
    values["averaged_distance"] = np.abs(signed + 0.1 * d.number())
    return d.file(meta={"recourse": {"models": 9, "repeats": 4, "size": None, "seed": 0}}, **values), policy()


def no_references() -> Case:
    d = Drawn(13, models=1, examples=400)
    return d.file(l1=d.size(2.0), variance=d.size(1.0), loss=d.size(1.0), label=d.label()), policy()


def sizes_of_several_classes() -> Case:
    d = Drawn(15)
    leaks = np.array([2.0, 0.0, -1.0])
    class_l1 = np.exp(d.number(0.0, 3) - 0.5 * leaks * d.member[..., None])
    return d.file(l1=class_l1[..., 0], class_l1=class_l1, label=d.label()), policy()


def foreign_labels() -> Case:
    d = Drawn(16, models=11, examples=500)
    each = np.concatenate([d.number(0.7, 4) for _ in range(3)], axis=2)
    p = np.exp(d.number(0.8, 4))
    values = {"l1": d.size(0.5), "l1@3": d.size(0.6), "prediction": p / p.sum(2, keepdims=True)}
    values |= {"prediction@3": each.reshape(*d.shape, 3, 4).mean(2), "predictions@3": each}
    return d.file(meta={"labels": "foreign"}, **values), policy(release="explanation+prediction", patience=(1, 3))


def few_attacks() -> Case:
    d = Drawn(19, examples=800)
    named = ("Threshold", "LikelihoodRatio", "LabelPatience")
    values = {"l1": d.size(1.0), "mean": d.number(), "my_number": d.number(0.3), "label": d.label()}
    return d.file(**values), policy(suite=named, selection=0.4)


def other_sources_and_an_untrained_model() -> Case:
    d = Drawn(20, models=6, examples=700)
    outside = np.arange(700) >= 600
    d.member[5], d.member[:, outside] = False, False
    d.inputs[outside] += 2000
    parts = {"class": d.own, "place": np.array(["north", "south"])[d.rng.integers(0, 2, 700)]}
    signals = d.file(meta={"null": [5]}, l1=d.size(2.0), label=d.label(), slices=parts, out_of_distribution=outside)
    return signals, policy(references=4, training=0.2)


FILES: dict[str, Callable[[], Case]] = {
    name.replace("_", " "): made
    for name, made in list(globals().items())
    if getattr(made, "__annotations__", {}).get("return") == Case
}
"""Every function above that makes a case, by its name."""


def signal_file(name: str) -> dict[str, Any]:
    """The verdict on one file, in Python and by the command, and on its examples for choosing where there are some."""
    signals, judged_by = FILES[name]()
    with empty_folder():
        signals.save("signals.npz")
        result = audit.certify(audit.Signals.load("signals.npz"), judged_by, seed=3)
        found = {**outcome(result.to_dict()), "exit code": result.exit_code, "strongest": result.strongest.code}
        if not judged_by.selection:
            return found
        Path("policy.toml").write_text(toml(judged_by))
        asked = ("attack", "signals.npz", "--policy", "policy.toml", "--seed", "3", "--json")
        for split in ("certification", "selection"):
            code, text = called(*asked, "--split", split)
            found[f"by the command, {split}"] = {**outcome(json.loads(text)), "exit code": code}
        return found


def toml(judged_by: audit.Policy) -> str:
    said = {name: value for name, value in asdict(judged_by).items() if value is not None}
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in said.items())


def signal_files() -> dict[str, Any]:
    return {name: signal_file(name) for name in FILES}


RECIPE = audit.Recipe(lr=5e-3, epochs=60, batch_size=25)
SMALL = audit.Policy(0.1, 0.2, patience=(1, 4), references=8, uncounted=True)
"""Half of the labels are drawn at random, so that models remember much: what explanations add is judged, or all."""

ASKED = ("--policy", "policy.toml", "--device", "cpu", "--run-dir", "run", "--json")


def build(seed: int = 0) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


def export(model: nn.Module, population: audit.Population) -> None:
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (population.x[:2],), dynamic_shapes=shapes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No complete tensor found")  # of torch, where weights are views
        torch.export.save(program, "model.pt2")


def whole_audits() -> dict[str, Any]:
    """A network's audit in Python, and by the command."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(9)
    y = np.where(rng.random(len(y)) < 0.5, rng.integers(0, 10, len(y)), y)
    population = audit.Population.of((x[:300] / 16).astype(np.float32), y[:300])
    models = audit.train_shadows(population, RECIPE, build=build, models=2, seed=7)
    model, member = models.models[0], models.membership[0]
    result = audit.audit(
        model,
        population,
        RECIPE,
        member=member,
        explainer=HardenedInputXGradient,
        hardening=Hardening.recommended(),
        build=build,
        references=8,
        policy=SMALL,
    )
    found = {"in Python": told(result.exit_code, json.dumps(result.to_dict()))}
    with empty_folder():
        np.savez("data.npz", x=population.x.numpy(), y=population.y.numpy(), member=member)
        Path("recipe.toml").write_text(RECIPE.to_toml())
        Path("policy.toml").write_text(toml(replace(SMALL, references=4, claim="whole")))
        export(model, population)
        asked = ("audit", "model.pt2", "--data", "data.npz", "--recipe", "recipe.toml", "--explainer", "InputXGradient")
        return {"network": found | {"by the command": commanded(*asked)}}
