"""A fuzzer of files of signals: no certificate by leaving out, renaming, rewriting or trying again.

Of each leaking file a verdict is taken first, under the strict policy; then comes a variant with one to three random
changes (arrays, rows, models, inputs, meta data, policy), judged with that file of uses. Half of the variants are also
judged without an earlier verdict, where the leak stays in the file under a name that is released. None may be
certified. Its opposite: harmless variants of clean files must get the verdict of the file.

    python -m audit.suites.fuzzed_files [--out FILE] [--cache DIR] [--quick]
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.audit import Policy, Signals, certify
from safexplain.audit.controls.splits import VARIABLE
from safexplain.cli import _run as command_line
from safexplain.errors import SafexplainError

from ...shared.run import Progress, Run, concluded

Arrays = dict[str, NDArray[Any]]
"""Arrays of a file; "meta" is a JSON text."""

Change = Callable[[Arrays, np.random.Generator], Arrays]

STRICT = Policy(fpr=0.05, max_tpr=0.15, patience=(1, 4), references=4)
VARIANTS, HARMLESS = 1000, 100


# ------------------------------------------------------------------------------------------- files


def clean(rng: np.random.Generator, n: int = 500, models: int = 7) -> Arrays:
    """Released numbers in which nothing is to be found, of one target and references."""
    member = rng.random((models, n)) < 0.5
    size, level = rng.normal(size=n), rng.normal(size=n)
    label = (rng.random(n) < 0.6).astype(np.int64) * np.ones((models, 1), np.int64)
    found: Arrays = {"membership": member, "label": label, "inputs": rng.normal(size=(n, 12)).astype(np.float32)}
    for at in (1, 4):
        name = lambda plain, at=at: plain if at == 1 else f"{plain}@{at}"  # noqa: E731
        found[name("l1")] = np.exp(size + 0.3 * rng.normal(size=member.shape))
        found[name("mean")] = level + 0.3 * rng.normal(size=member.shape)
        if at > 1:
            found[name("kept")] = rng.binomial(at, 0.9, member.shape) / at
    found["meta"] = np.array(json.dumps({"targets": [0], "explainer": "E", "hardening": "H", "population": "ab" * 32}))
    return found


def leaking(kind: str, rng: np.random.Generator) -> Arrays:
    """A file that leaks in one place."""
    a = clean(rng)
    member = a["membership"]
    if kind == "norm":
        a["l1"] = a["l1"] * np.exp(-1.5 * member)
    elif kind == "mean of four queries":
        a["mean@4"] = a["mean@4"] - 1.5 * member
    elif kind == "whole map":
        maps = rng.normal(size=(*member.shape, 6)) + 1.2 * member[..., None]
        a |= {"attributions": maps.astype(np.float32), "attributions@4": maps.astype(np.float32)}
    elif kind == "unknown array":
        a["rank_of_top"] = rng.normal(size=member.shape) - 2.0 * member
        a["rank_of_top@4"] = rng.normal(size=member.shape) - 2.0 * member
    elif kind == "whole numbers":
        a["count"] = rng.poisson(3 + 6 * member)
        a["count@4"] = rng.poisson(3 + 6 * member)
    elif kind == "groups":
        a["l1"] = a["l1"] * np.exp(-2.0 * member)
        a["groups"] = np.arange(member.shape[1])
    return a


KINDS = ("norm", "mean of four queries", "whole map", "unknown array", "whole numbers", "groups")


# ------------------------------------------------------------------------------------------- changes

AIDS = ("membership", "meta", "inputs", "examples", "groups", "out_of_distribution")


def released(a: Arrays) -> list[str]:
    """Names of signals."""
    return [name for name in a if name not in AIDS]


def pick(rng: np.random.Generator, items: Sequence[Any]) -> Any:
    """One of them."""
    return items[int(rng.integers(len(items)))]


def about(a: Arrays, **changes: Any) -> Arrays:
    """With other meta data."""
    return {**a, "meta": np.array(json.dumps({**json.loads(str(a["meta"])), **changes}))}


def take(a: Arrays, rows: NDArray[Any]) -> Arrays:
    """Some examples."""
    own = ("inputs", "examples", "groups", "out_of_distribution")
    return {
        k: v if k == "meta" else v[rows] if k in own or k.startswith("slice_") else v[:, rows] for k, v in a.items()
    }


def of_models(a: Arrays, models: Sequence[int]) -> Arrays:
    """Some models, the target first."""
    return {k: v if k in AIDS[1:] or k.startswith("slice_") else v[list(models)] for k, v in a.items()}


def changed_by(changes: Sequence[Change], a: Arrays, rng: np.random.Generator) -> Arrays:
    """One after another; what has nothing to change in a file leaves it as it is."""
    for change in changes:
        with suppress(KeyError, IndexError, ValueError):
            a = change(a, rng)
    return a


def drop(a: Arrays, rng: np.random.Generator) -> Arrays:
    gone = pick(rng, released(a))
    return {k: v for k, v in a.items() if k != gone}


def drop_level(a: Arrays, rng: np.random.Generator) -> Arrays:
    return {k: v for k, v in a.items() if "@" not in k or (k.startswith("kept") and rng.random() < 0.5)}


def rename(a: Arrays, rng: np.random.Generator) -> Arrays:
    """To names that nobody knows, and to those of other levels."""
    old = pick(rng, released(a))
    plain, at, level = old.partition("@")
    new = pick(
        rng, [f"labels_{plain}{at}{level}", f"x_{old}", f"kept_{old}", f"label_{old}", f"{plain}@199", f"{plain}@5"]
    )
    return {(new if k == old else k): v for k, v in a.items()}


def declare(a: Arrays, rng: np.random.Generator) -> Arrays:
    """To names of what is not released, or is no signal."""
    old = pick(rng, released(a))
    new = pick(rng, ["loss", "margin", "prediction", "slice_a", "groups", "out_of_distribution", "kept@4", "shares@4"])
    return {(new if k == old else k): v for k, v in a.items()}


def swap_levels(a: Arrays, rng: np.random.Generator) -> Arrays:
    """The plain query's arrays in place of those of four, which leak elsewhere."""
    return {k: a[k.partition("@")[0]] if "@4" in k and k.partition("@")[0] in a else v for k, v in a.items()}


def permute_rows(a: Arrays, rng: np.random.Generator) -> Arrays:
    return take(a, rng.permutation(a["membership"].shape[1]))


def permute_models(a: Arrays, rng: np.random.Generator) -> Arrays:
    return of_models(a, [0, *(1 + rng.permutation(len(a["membership"]) - 1))])


def fewer_models(a: Arrays, rng: np.random.Generator) -> Arrays:
    return of_models(a, range(int(rng.integers(1, len(a["membership"])))))


def repeat_models(a: Arrays, rng: np.random.Generator) -> Arrays:
    return of_models(a, [*range(len(a["membership"])), int(rng.integers(1, len(a["membership"])))])


def permute_one(a: Arrays, rng: np.random.Generator) -> Arrays:
    """One signal, so that it says nothing any more."""
    name = pick(rng, released(a))
    return {**a, name: a[name][:, rng.permutation(a[name].shape[1])]}


def fewer_rows(a: Arrays, rng: np.random.Generator) -> Arrays:
    n = a["membership"].shape[1]
    return take(a, np.sort(rng.permutation(n)[: int(pick(rng, [n - 1, 0.9 * n, n / 2, n / 4]))]))


def half(a: Arrays, rng: np.random.Generator) -> Arrays:
    n = a["membership"].shape[1]
    return take(a, np.arange(n // 2) + (n - n // 2) * int(rng.integers(2)))


def repeat_rows(a: Arrays, rng: np.random.Generator) -> Arrays:
    n = a["membership"].shape[1]
    return take(a, np.concatenate([np.arange(n), rng.integers(n, size=n // int(pick(rng, [2, 10])))]))


def nudge_inputs(a: Arrays, rng: np.random.Generator) -> Arrays:
    if "inputs" not in a:
        return a
    x, by = a["inputs"], 10.0 ** -rng.integers(4, 8)
    near = x * (1 + by) if rng.random() < 0.5 else x * (1 + by * rng.normal(size=x.shape))
    return {**a, "inputs": near.astype(x.dtype)}


def other_units(a: Arrays, rng: np.random.Generator) -> Arrays:
    if "inputs" not in a:
        return a
    return {**a, "inputs": ((a["inputs"] - rng.normal()) * rng.uniform(0.1, 10)).astype(np.float32)}


def without_inputs(a: Arrays, rng: np.random.Generator) -> Arrays:
    """And another name of the population, or hashes that are invented."""
    left = {k: v for k, v in a.items() if k != "inputs"}
    if rng.random() < 0.5:
        left["examples"] = rng.integers(2**62, size=a["membership"].shape[1]).astype(np.uint64)
    return about(left, population=f"{rng.integers(1 << 30):x}")


def noise_on_signals(a: Arrays, rng: np.random.Generator) -> Arrays:
    """A hair of it, so that the numbers are others."""
    name = pick(rng, [k for k in released(a) if a[k].dtype.kind == "f" and not k.startswith(("kept", "shares"))])
    return {**a, name: a[name] * (1 + 1e-6 * rng.normal(size=a[name].shape)).astype(a[name].dtype)}


def precision(a: Arrays, rng: np.random.Generator) -> Arrays:
    kind = pick(rng, [np.float16, np.float32, np.float64])
    return {k: v.astype(kind) if v.dtype.kind == "f" and k != "inputs" else v for k, v in a.items()}


def as_vector(a: Arrays, rng: np.random.Generator) -> Arrays:
    """A number in a shape of its own."""
    name = pick(rng, [k for k in released(a) if a[k].ndim == 2])
    return {**a, name: a[name][..., None]}


def layout(a: Arrays, rng: np.random.Generator) -> Arrays:
    names = [str(name) for name in rng.permutation([*a])]
    return {name: np.asfortranarray(a[name]) if a[name].ndim else a[name] for name in names}


def other_meta(a: Arrays, rng: np.random.Generator) -> Arrays:
    return about(a, **pick(rng, [
        {"population": "cd"}, {"hardening": "another"}, {"explainer": "another"}, {"seed": 5}, {"targets": [1]},
        {"targets": [0, 1]}, {"recourse": {}}, {"labels": "foreign"}, {"subject": "another"}, {"unreleased": ["l1"]},
        {"title": "x"}, {"shape": [2, 3]},
    ]))  # fmt: skip


def other_source(a: Arrays, rng: np.random.Generator) -> Arrays:
    """Some non-members are said to be of another source, and leave the scored examples."""
    never = ~a["membership"].any(0)
    return {**a, "out_of_distribution": never & (rng.random(never.shape) < 0.7)}


KEEPS_THE_LEAK: tuple[Change, ...] = (
    rename, permute_rows, permute_models, nudge_inputs, other_units, noise_on_signals, precision, layout, repeat_models,
    as_vector,
)  # fmt: skip
"""After which a leak is in the file as before, under a name that is released."""

CHANGES: tuple[Change, ...] = (
    *KEEPS_THE_LEAK, drop, drop_level, declare, swap_levels, fewer_models, permute_one, fewer_rows, half, repeat_rows,
    without_inputs, other_meta, other_source,
)  # fmt: skip

POLICIES: tuple[dict[str, Any], ...] = (
    {"max_tpr": 0.5}, {"max_excess": 0.5}, {"confidence": 0.8}, {"confidence": 0.01}, {"fpr": 0.01},
    {"fpr": 0.2, "max_tpr": 0.5},
    {"patience": (1,)}, {"patience": (4,)}, {"patience": (1, 4, 8)}, {"references": 1}, {"claim": "whole"},
    {"claim": "whole", "max_tpr": 0.5}, {"release": "prediction"}, {"release": "explanation+prediction"},
    {"uncounted": True}, {"uncounted": True, "max_excess": 0.5}, {"selection": 0.4}, {"training": 0.4},
    {"suite": ("LikelihoodRatio",)}, {"suite": ("Threshold", "RMIA")}, {"reason": "because"}, {"max_tpr": 0.99},
    {"looks": 3, "look": 2},
)  # fmt: skip
"""Tried after the strict one."""


# ------------------------------------------------------------------------------------------- judging


def outcome(a: Arrays, policy: Policy, folder: Path, uses: Path, seed: int = 0, *, command: bool = False) -> str:
    """The verdict on the file, or "refused"; by the command line or in Python."""
    path = folder / "signals.npz"
    np.savez(path, **a)
    os.environ[VARIABLE] = str(uses)
    if command:
        config = folder / "policy.toml"
        lines = [f"{k} = {json.dumps(v)}" for k, v in policy.to_dict().items() if v is not None]
        config.write_text("\n".join(lines))
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            code = command_line(["attack", str(path), "--policy", str(config), "--json", "--quiet"])
        return {0: "certified", 1: "leak", 3: "inconclusive"}.get(code, "refused")
    try:
        return certify(Signals.load(path), policy, seed=seed).verdict
    except SafexplainError:
        return "refused"


def after_a_verdict(number: int) -> dict[str, Any]:
    """A variant of a leaking file that was judged before, and what comes of it."""
    rng = np.random.default_rng([1, number])
    kind = KINDS[number % len(KINDS)]
    file = leaking(kind, np.random.default_rng([0, number % (5 * len(KINDS))]))
    with tempfile.TemporaryDirectory() as at:
        folder, uses = Path(at), Path(at, "uses.sqlite")
        first = outcome(file, STRICT, folder, uses)
        changes = [pick(rng, CHANGES) for _ in range(int(rng.integers(1, 4)))]
        changed = changed_by(changes, file, rng)
        policy, seed = STRICT, 0
        try:
            if rng.random() < 0.6:
                policy = replace(STRICT, **pick(rng, POLICIES))
            elif rng.random() < 0.3:
                seed = int(rng.integers(1, 5))
        except SafexplainError:
            return {"kind": kind, "first": first, "changes": ["policy"], "then": "refused"}
        then = outcome(changed, policy, folder, uses, seed, command=number % 25 == 0)
    names = [change.__name__ for change in changes] + ([] if policy is STRICT else [policy.changes])
    return {"kind": kind, "first": first, "changes": names, "then": then}


def first_of_all(number: int) -> dict[str, Any]:
    """A variant of a leaking file that keeps the leak, judged without any earlier verdict."""
    rng = np.random.default_rng([2, number])
    kind = KINDS[number % len(KINDS)]
    file = leaking(kind, np.random.default_rng([0, number % (5 * len(KINDS))]))
    changes = [pick(rng, KEEPS_THE_LEAK) for _ in range(int(rng.integers(1, 4)))]
    changed = changed_by(changes, file, rng)
    with tempfile.TemporaryDirectory() as at:
        then = outcome(changed, STRICT, Path(at), Path(at, "uses.sqlite"))
    return {"kind": kind, "first": "", "changes": [change.__name__ for change in changes], "then": then}


def harmless(number: int) -> dict[str, Any]:
    """A harmless variant of a clean file, on fresh uses and after the file itself."""
    rng = np.random.default_rng([3, number])
    file = clean(np.random.default_rng([4, number % 5]), n=1600)
    policy = replace(STRICT, max_excess=0.2)

    def titled(a: Arrays, rng: np.random.Generator) -> Arrays:
        return about(a, title=f"run {rng.integers(1000)}", note=["x"], when="today")

    def single(a: Arrays, rng: np.random.Generator) -> Arrays:
        kind = pick(rng, [np.float32, np.float64])
        return {k: v.astype(kind) if v.dtype.kind == "f" else v for k, v in a.items()}

    changes = [pick(rng, (permute_rows, permute_models, layout, titled, single)) for _ in range(2)]
    changed = changed_by(changes, file, rng)
    with tempfile.TemporaryDirectory() as at:
        folder, uses = Path(at), Path(at, "uses.sqlite")
        first = outcome(file, policy, folder, uses)
        fresh = outcome(changed, policy, folder, Path(at, "fresh.sqlite"))
        again = outcome(changed, policy, folder, uses)
    return {"first": first, "changes": [change.__name__ for change in changes], "fresh": fresh, "again": again}


def main(argv: list[str] | None = None) -> int:
    """Judge all variants and write the table; 1 if one is certified, or a harmless one judged otherwise."""
    run = Run("fuzzed_files", __doc__, argv)
    parts, progress, share = run.parts(__package__), Progress(), 0.02 if run.quick else 1.0
    variants = {"after a verdict": (after_a_verdict, VARIANTS), "first of all": (first_of_all, VARIANTS // 4),
                "harmless": (harmless, HARMLESS)}  # fmt: skip
    results, missed = dict[str, Any](), list[str]()
    for name, (judged, many) in variants.items():
        rows, count = list[dict[str, Any]](), max(2, round(share * many))
        for number in range(count):
            rows.append(parts.get([name, number], lambda n=number, j=judged: j(n)))
            progress(name, number + 1, count)
        results[name] = {"variants": count}
        if name == "harmless":
            results[name]["outcomes"] = _counted(row["again"] for row in rows)
            missed += [f"harmless: {r}" for r in rows if {r["first"], r["fresh"], r["again"]} != {"certified"}]
            continue
        results[name]["outcomes"] = _counted(row["then"] for row in rows)
        changes = sorted({c for r in rows for c in r["changes"]})
        results[name]["by change"] = {c: _counted(r["then"] for r in rows if c in r["changes"]) for c in changes}
        missed += [f"{name}: certified after {row['changes']}" for row in rows if row["then"] == "certified"]
    run.write(results=results, run=run.provenance())
    return concluded(missed, run.out)


def _counted(outcomes: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(outcomes).items()))
