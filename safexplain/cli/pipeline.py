"""From trained models to files: release natively and hardened, attack both, and write what was found."""

from __future__ import annotations

import hashlib
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import safexplain
from safexplain.audit import Population, Shadows, Signals, audit, collect_signals, side_by_side, utility
from safexplain.audit.certificate import statement, write_json
from safexplain.audit.protocol import Policy
from safexplain.audit.report import Configuration, Pictures, ReportData, write_report
from safexplain.audit.shadows import Progress, named
from safexplain.cli.release import Method
from safexplain.errors import InputError
from safexplain.hardening import Hardening
from safexplain.identity import model_digest

MODEL_DIGEST = "safexplainModelDigest"
"""Name of `safexplain.identity.model_digest` in a certificate."""

SHOWN = 6
"""Examples pictured in the report."""

LARGEST_MAPS = 2 << 30
"""Bytes of attribution maps kept in memory for the whole-map attack; above it, that attack is left out."""


@dataclass(frozen=True, eq=False)
class Pool:
    """A population and the models over it, the target first.

    Args:
        population: the examples.
        shadows: models and membership; model 0 is the target.
    """

    population: Population
    shadows: Shadows


@dataclass(frozen=True, eq=False)
class Plan:
    """What is audited and how.

    Args:
        title: for the report.
        method: what is explained.
        name: of the hardening: recommended, custom or native.
        hardening: of the released explanations.
        policy: what counts as a leak.
        seed: of everything random; also makes the audit's own noise key.
        batch_size: examples an explanation call.
        subject: name -> {algorithm: digest} of the audited models; empty: digests of their parameters.
        materials: name -> digest, for provenance.
        notes: caveats for the reader.
    """

    title: str
    method: Method
    name: str
    hardening: Hardening
    policy: Policy
    seed: int
    batch_size: int = 256
    subject: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    materials: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came out: configurations in the report's order (the last one is judged), and the files."""

    configurations: tuple[Configuration, ...]
    folder: Path
    notes: tuple[str, ...]
    files: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; the judged configuration's result at the top level."""
        judged = self.configurations[-1]
        return {
            **judged.result.to_dict(),
            "configuration": judged.name,
            "utility": judged.utility.to_dict() if judged.utility else None,
            "compared": {c.name: c.result.to_dict() for c in self.configurations[:-1]},
            "notes": list(self.notes),
            "run_dir": str(self.folder),
            "files": dict(self.files),
        }


def run_pipeline(pools: Sequence[Pool], plan: Plan, folder: Path, progress: Progress) -> Outcome:
    """Explain with every model, natively and through the hardening, attack both, and write the files.

    Writes signals.npz (what the audited configuration releases), native-signals.npz, report.html, certificate.json.

    Raises:
        InputError: an explanation fails, or a file cannot be written.
    """
    notes = list(plan.notes)
    features = int(pools[0].population.x[0].numel())
    size = 4 * features * sum(p.shadows.membership.size for p in pools)
    keep = size <= LARGEST_MAPS
    if not keep:
        notes.append(f"the whole-map attack was left out: the maps of all models would take {size / 2**30:.0f} GiB")
    key = hashlib.blake2b(f"audit {plan.seed}".encode(), digest_size=32).digest()
    hardening = plan.hardening.with_key(key)
    releases = {"native": None} if plan.hardening.is_none else {"native": None, plan.name: hardening}
    signals: dict[str, Signals] = {}
    for name, applied in releases.items():
        meta = {"explainer": plan.method.title, "release": name, "seed": plan.seed}
        if applied is not None:
            meta["hardening"] = applied.to_json()
        parts = []
        for i, pool in enumerate(pools):
            stage = f"explaining ({name}{f', pool {i + 1}' if len(pools) > 1 else ''})"
            parts.append(
                collect_signals(
                    pool.shadows,
                    pool.population,
                    plan.method.explain(applied),
                    batch_size=plan.batch_size,
                    keep_attributions=keep,
                    targets=(0,),
                    meta=meta,
                    progress=named(progress, stage),
                )
            )
        signals[name] = side_by_side(parts)
    configurations = tuple(_configuration(name, s, signals["native"], plan, progress) for name, s in signals.items())
    files = {"report": "report.html", "certificate": "certificate.json", "signals": "signals.npz"}
    judged = configurations[-1]
    signals[judged.name].save(folder / "signals.npz")
    if len(configurations) > 1:
        signals["native"].save(folder / "native-signals.npz")
        files["native_signals"] = "native-signals.npz"
    materials = {**plan.materials, "signals.npz sha256": _sha256(folder / "signals.npz")}
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
                "options": dict(plan.method.options),
            },
            hardening=plan.hardening.to_dict(),
            audit=judged.result.to_dict(),
            utility=judged.utility.to_dict() if judged.utility else None,
            materials=materials,
            environment=environment,
            notes=notes,
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
    )
    write_report(folder / "report.html", report)
    return Outcome(configurations, folder, tuple(notes), files)


def _configuration(name: str, signals: Signals, native: Signals, plan: Plan, progress: Progress) -> Configuration:
    result = audit(
        signals,
        plan.policy,
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


def choose_folder(run_dir: Path | None, resume: bool) -> Path:
    """The run directory, not yet made.

    Raises:
        InputError: it holds files and `resume` is False, or `resume` without a directory.
    """
    if run_dir is None:
        if resume:
            raise InputError("--resume needs --run-dir: the directory of the run to take up")
        return Path("safexplain-runs") / time.strftime("%Y%m%d-%H%M%S")
    if resume and not run_dir.is_dir():
        raise InputError(f"--resume: there is no run directory {run_dir}")
    if run_dir.exists() and not run_dir.is_dir():
        raise InputError(f"--run-dir: {run_dir} is a file; give a directory")
    if not resume and run_dir.is_dir() and any(run_dir.iterdir()):
        raise InputError(f"{run_dir} is not empty: pass --resume to take it up, or another --run-dir")
    return run_dir


def make_folder(folder: Path) -> None:
    """Make the run directory and see that it can be written, before anything long is begun.

    Raises:
        InputError: it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_bytes(b"0")
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None
