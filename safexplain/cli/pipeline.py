"""From trained models to files: release natively and hardened, attack both, and write what was found."""

from __future__ import annotations

import hashlib
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import safexplain
from safexplain._digest import model_digest
from safexplain._progress import Progress, named
from safexplain.audit import Signals, certify, utility
from safexplain.audit.holdout_uses import uses_of
from safexplain.audit.report import ReportData, write_report
from safexplain.audit.report.model import Configuration, Pictures
from safexplain.cli.collect import ask, find_cause
from safexplain.cli.plan import Outcome, Plan, Pool
from safexplain.verdict.certificate.write import MODEL_DIGEST, statement, write_json

LOOKED_AT = 64
"""Examples on which it is seen whether a model returns probabilities."""

SHOWN = 6
"""Examples pictured in the report."""

LARGEST_MAPS = 2 << 30
"""Bytes of attribution maps kept in memory for the whole-map attack; above it, that attack is left out."""


def run_pipeline(pools: Sequence[Pool], plan: Plan, folder: Path, progress: Progress) -> Outcome:
    """Explain with every model, natively and through the hardening, attack both, and write the files.

    Writes signals.npz (what the audited configuration releases), native-signals.npz, report.html, certificate.json.

    Raises:
        InputError: an explanation fails, or a file cannot be written.
    """
    notes = list(plan.notes)
    plan = replace(plan, method=plan.method.settled(pools[0].shadows.models[0], pools[0].population.x[:LOOKED_AT]))
    features = int(pools[0].population.x[0].numel())
    copies = 1 if plan.hardening.is_none else 2  # averaged over near-duplicates too
    size = 4 * copies * features * sum(p.shadows.membership.size for p in pools)
    keep = size <= LARGEST_MAPS
    if not keep:
        notes.append(f"the whole-map attack was left out: the maps of all models would take {size / 2**30:.0f} GiB")
    signals = {"native": ask(pools, plan, "native", None, keep, progress)}
    if not plan.hardening.is_none:
        signals[plan.name] = ask(pools, plan, plan.name, plan.hardening, keep, progress)
    inputs = np.concatenate([p.population.x.numpy() for p in pools])
    configurations = tuple(
        _configuration(name, s, signals["native"], inputs, plan, progress) for name, s in signals.items()
    )
    causes, cause = find_cause(pools, plan, signals["native"], keep, progress)
    files = {"report": "report.html", "certificate": "certificate.json", "signals": "signals.npz"}
    judged = configurations[-1]
    signals[judged.name].save(folder / "signals.npz")
    if len(configurations) > 1:
        signals["native"].save(folder / "native-signals.npz")
        files["native_signals"] = "native-signals.npz"
    materials = {**plan.materials, "signals.npz sha256": _sha256(folder / "signals.npz")}
    if plan.recipe:
        materials["recipe sha256"] = hashlib.sha256(plan.recipe.encode()).hexdigest()
    subject = plan.subject or {
        f"target {i + 1}": {MODEL_DIGEST: model_digest(p.shadows.models[0]).hex()} for i, p in enumerate(pools)
    }
    environment = _environment(plan, pools)
    write_json(
        folder / "certificate.json",
        statement(
            subject=subject,
            explainer={
                "method": plan.method.row.name,
                "output": plan.method.output,
                "softmax": plan.method.softmax,
                "options": dict(plan.method.options),
            },
            hardening=plan.hardening.to_dict(),
            audit=judged.result.to_dict(),
            utility=judged.utility.to_dict() if judged.utility else None,
            materials=materials,
            environment=environment,
            notes=notes,
            privacy=plan.privacy.to_dict() if plan.privacy else None,
            canaries=plan.canaries.to_dict() if plan.canaries else None,
        ),
    )
    provenance = {
        **{f"{name} ({kind})": value for name, digests in subject.items() for kind, value in digests.items()},
        **materials,
        **environment,
    }
    report = ReportData(
        title=plan.title,
        explainer=plan.method.title,
        configurations=configurations,
        provenance=provenance,
        pictures=_pictures(pools[0], signals, judged.name),
        notes=tuple(notes),
        privacy=plan.privacy,
        canaries=plan.canaries,
        root_cause=causes,
        root_cause_sentence=cause,
        other_key=None if plan.hardening.noise is None else True,
    )
    write_report(folder / "report.html", report)
    return Outcome(configurations, folder, tuple(notes), files)


def _configuration(
    name: str, signals: Signals, native: Signals, inputs: NDArray[Any], plan: Plan, progress: Progress
) -> Configuration:
    result = certify(
        signals,
        plan.policy,
        inputs=inputs,
        uses=uses_of(signals.meta, plan.force),
        seed=plan.seed,
        progress=named(progress, f"attacking ({name})"),
    )
    if signals is native:
        return Configuration("native", "the native explanation, as it is", result, None)
    kept = None
    if native.attributions is not None and signals.attributions is not None:
        kept = utility(native.attributions[0], signals.attributions[0])
    return Configuration(name, repr(plan.hardening), result, kept)


def _pictures(pool: Pool, signals: Mapping[str, Signals], judged: str) -> Pictures | None:
    """Members and non-members in turn, when the inputs are images and the maps have their shape."""
    x = pool.population.x
    if x.dim() != 4 or x.shape[1] not in (1, 3) or signals["native"].attributions is None:
        return None
    member = pool.shadows.membership[0]
    sides = [np.flatnonzero(member)[: SHOWN // 2], np.flatnonzero(~member)[: SHOWN // 2]]
    chosen = np.array([i for pair in zip(*sides, strict=False) for i in pair])

    def maps(name: str) -> NDArray[Any]:
        kept = signals[name].attributions
        assert kept is not None
        return np.asarray(kept[0, chosen]).reshape(len(chosen), *x.shape[1:])

    if signals["native"].attributions.shape[2] != x[0].numel():
        return None
    images = x[torch.from_numpy(chosen)].numpy()
    low, high = images.min((1, 2, 3), keepdims=True), images.max((1, 2, 3), keepdims=True)
    labels = signals["native"].values["label"][0, chosen].astype(int)
    captions = tuple(
        f"predicted {label} · {'member' if member[i] else 'non-member'}"
        for i, label in zip(chosen, labels, strict=True)
    )
    released = None if judged == "native" else maps(judged)
    return Pictures((images - low) / np.maximum(high - low, 1e-12), maps("native"), released, captions)


def _environment(plan: Plan, pools: Sequence[Pool]) -> dict[str, str]:
    device = next((p.device for p in pools[0].shadows.models[0].parameters()), torch.device("cpu"))
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    import captum

    return {
        "safexplain": safexplain.__version__,
        "torch": torch.__version__,
        "captum": captum.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device.type} ({hardware})",
        "seed": str(plan.seed),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
