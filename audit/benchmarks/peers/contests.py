"""Who is asked what: peers, their licences and environments, and the races with each."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .environments import Environment, Skipped
from .work import bounds, explanations


@dataclass(frozen=True)
class Contest:
    """One race.

    Args:
        name: as tables have it.
        ours, theirs: calls of the module of `work`.
        what: is done, and in what both differ.
        unit: of the times.
        note: why the peer is faster, where it is.
        once: one run of each, the first, as a user has it.
    """

    name: str
    ours: str
    theirs: str
    what: str
    unit: str = "attack"
    note: str = ""
    once: bool = False


Works = dict[str, tuple[Contest, ...]]


@dataclass(frozen=True)
class Peer:
    """One library, or one way to do it.

    Args:
        key: on the command line.
        title: in tables.
        licence: of the releases that are asked.
        asked_for: what is compared.
        environment: what it needs.
        packages: whose versions are recorded.
        works: whether the run is quick -> module of `work` -> races.
        repository: a file that its clone must hold; "": it is asked as installed.
        together: both sides in one process, in the peer's environment, where that can run ours too: two processes may
            differ by a tenth in the same call, which matters where little is to be told.
    """

    key: str
    title: str
    licence: str
    asked_for: str
    environment: Environment
    packages: tuple[str, ...]
    works: Callable[[bool], Works] = field(repr=False)
    repository: str = ""
    together: bool = False

    def checked_out(self, clone: Path | None) -> dict[str, str]:
        """The commit that is asked, for a peer that is asked from a clone.

        Raises:
            Skipped: there is no clone, or it lacks the file.
        """
        if not self.repository:
            return {}
        if clone is None:
            raise Skipped("not on PyPI; give a clone of its repository with --checkout DIR")
        command = ["git", "-C", str(clone), "log", "-1", "--format=%H", "HEAD", "--", self.repository]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode or not done.stdout.strip():
            raise Skipped(f"--checkout is no clone that holds {self.repository}")
        return {"commit of its file": done.stdout.strip()}


RMIA_FILE = "modules/mia/attacks/rmia.py"

ATTACKS = "33 small networks on CIFAR-10 features, one of them the target: the same losses and logits for both."

STEP = "25,000 parameters, batch 64 of 3 x 32 x 32, flat clipping, noise multiplier 1, SGD."

NOISE = (
    "Both sides run Opacus' rules for gradients of single examples; ours draws four numbers of noise a weight where"
    " Opacus draws one. With plain noise the arithmetic is the same, and what differs is checks in Python and chance."
)

HARDENED = "Hardening is work on top of the native explanation, so that the ratio is below 1 by what it adds."

EXACT = "Both compose privacy-loss distributions; ours for both adjacencies, theirs for one."

RENYI = "Renyi DP is a few formulas, privacy-loss distributions are convolutions: slower, and sharper."

ASKED = (
    "Who was in, by labels and losses? The model and its data are there; reference models are trained within the time."
    " Ours is an audit with its defaults (8 references, controls, verdict); its rate counts only what the lower"
    " threshold allows, at most 1 % false positives."
)


def question(kind: str, theirs: str, call: str, how: str) -> Contest:
    """A race to an answer on one of the two models."""
    title = "XGBoost" if kind == "booster" else "a small CNN"
    what = f"{ASKED} {how}"
    note = "RMIA trains one reference and QMIA none; an audit trains eight, runs its controls, and finds more."
    return Contest(f"who was in {title}? {theirs}", f"audit, {kind}", f"{call}, {kind}", what, "answer", note, True)


PEERS: tuple[Peer, ...] = (
    Peer(
        "ml-privacy-meter", "ML Privacy Meter, its repository", "MIT", "RMIA with 32 references",
        Environment("development"), ("numpy", "scikit-learn"),
        lambda quick: {"attacks": (
            Contest(
                "RMIA, offline, a = .3", "RMIA, offline", "ml-privacy-meter: RMIA",
                f"{ATTACKS} Theirs compares with further examples that no model saw, ours with the other examples of"
                " the pool.",
            ),
        ), "question": tuple(
            question(kind, "RMIA", "RMIA", "Theirs is RMIA with one reference and 1,000 further examples.")
            for kind in ("cnn", "booster")
        )},
        RMIA_FILE,
    ),
    Peer(
        "art", "ART", "MIT", "membership inference with 32 references, and their training",
        Environment(
            "art", ("adversarial-robustness-toolbox==1.20.1",), "import art.attacks.inference.membership_inference"
        ),
        ("adversarial-robustness-toolbox", "torch"),
        lambda quick: {"attacks": (
            Contest(
                "learned black-box attack, beside our LiRA", "LiRA", "art: MembershipInferenceBlackBox",
                f"{ATTACKS} ART has neither LiRA nor RMIA; nearest is a network that learns from the references'"
                " logits and labels (10,000 rows of them, its other options as they are).",
            ),
            Contest(
                "training 32 references", "train_shadows", "art: ShadowModels",
                "32 networks 256-256-10 on halves of the same features, ten epochs of Adam, batches of 128.",
                "model",
            ),
        )},
    ),
    Peer(
        "sacro-ml", "SACRO-ML", "MIT", "a likelihood ratio on a random forest, its 32 shadow models included",
        Environment(  # without what it needs for reports alone; its xgboost would bring a CUDA library
            "sacro-ml",
            ("--no-deps", "sacroml==2.0.1", "acro==1.0.2", "fpdf==1.7.2", "pypdf==7.1.0", "multiprocess==0.70.19",
             "dictdiffer==0.10.0", "tabulate==0.10.0"),
            "from sacroml.attacks.likelihood_attack import LIRAAttack",
        ),
        ("sacroml", "scikit-learn"),
        lambda quick: {"forests": tuple(
            Contest(
                f"LiRA of a forest, {mode}", "LiRA of a forest", f"sacroml, {mode}",
                "A forest of 30 trees that knows half of 1,797 digits; both train 32 more and compare confidences."
                f" Theirs in its {how}, and its shadow models go through files.",
            )
            for mode, how in (("offline", "default mode"), ("online", 'mode "online-carlini"'))
        ), "question": tuple(
            question("booster", attack, f"SACRO-ML {attack}", f"Theirs is {how}, for tables only.")
            for attack, how in (("LiRA", "LiRA with 100 shadow models, offline"), ("QMIA", "QMIA without any"))
        )},
    ),
    Peer(
        "privacy-guard", "PrivacyGuard", "Apache-2.0", "LiRA with 16 shadow models, and its analysis",
        Environment(
            "privacy-guard", ("privacyguard-platform==0.0.2",), "import privacy_guard.attacks.lira_attack"
        ),
        ("privacyguard-platform",),
        lambda quick: {"question": tuple(
            question(kind, "LiRA", "PrivacyGuard", "Theirs is online LiRA with 16 shadow models, and bootstrapped"
                     " limits.")
            for kind in ("cnn", "booster")
        )},
    ),
    Peer(
        "opacus", "Opacus", "Apache-2.0", "a DP-SGD step, and a head",
        Environment("opacus", ("opacus>=1.6",), "import opacus"), ("opacus", "torch"),
        lambda quick: {"dp_steps": (
            Contest("step of a CNN, ghost clipping", "make_step, ghost", "Opacus, ghost",
                    f"{STEP} Ours draws four numbers where Opacus draws one, so that floating-point gaps do not tell"
                    " the noise.", "step", NOISE),
            Contest("the same, plain noise", "make_step, ghost, plain noise", "Opacus, ghost",
                    f"{STEP} Both draw one number.", "step", NOISE),
            Contest("step of a CNN, gradients by hooks", "make_step, hooks", "Opacus, hooks",
                    f"{STEP} Ours draws four numbers where Opacus draws one, so that floating-point gaps do not tell"
                    " the noise.", "step", NOISE),
            Contest("gradients by hooks, plain noise", "make_step, hooks, plain noise", "Opacus, hooks",
                    f"{STEP} Both draw one number.", "step", NOISE),
            Contest("a head of 500 x 768 x 10, 100 steps", "train_heads", "Opacus, head",
                    "q = .25. Ours in closed form, Poisson batches and float-safe noise; Opacus in the loop of its"
                    " tutorial, its engine made anew.", "run"),
            Contest("17 such heads", "train_heads, 17 at once", "Opacus, head",
                    "Ours trains 17 runs at once, each with batches and noise of its own.", "run"),
        )},
        together=True,
    ),
    Peer(
        "captum", "Captum", "BSD-3-Clause", "each explainer of the catalog, native beside hardened",
        Environment("captum", ("captum>=0.9",), "import captum"), ("captum", "torch"),
        lambda quick: {"explanations": tuple(
            Contest(name, f"hardened {name}", f"native {name}",
                    "ResNet-18, 32 images of 3 x 32 x 32, IG with 25 steps, 16 groups of features,"
                    " Hardening.recommended().", "batch", HARDENED)
            for name in explanations.methods(quick)
        )},
        together=True,
    ),
    Peer(
        "dp-accounting", "dp-accounting", "Apache-2.0", "epsilon by privacy-loss distributions",
        Environment("dp-accounting", ("dp-accounting>=0.6",), "import dp_accounting"), ("dp-accounting",),
        lambda quick: {"bounds": tuple(
            Contest(f"epsilon, {s}", f"epsilons, {s}", f"dp-accounting, {s}",
                    "Ours computes the epsilons of both adjacencies, theirs that of add/remove.", "setting", EXACT)
            for s in bounds.GRID
        )},
    ),
    Peer(
        "tensorflow-privacy", "TF Privacy", "Apache-2.0", "epsilon by Renyi DP",
        Environment("tensorflow-privacy", ("tensorflow-privacy==0.9.0", "tensorflow==2.15.1"),
                    "from tensorflow_privacy.privacy.analysis import compute_dp_sgd_privacy_lib"),
        ("tensorflow-privacy", "dp-accounting", "tensorflow"),
        lambda quick: {"bounds": tuple(
            Contest(f"epsilon, {s}", f"epsilons, {s}", f"TF Privacy, {s}",
                    "Ours computes the epsilons of both adjacencies from privacy-loss distributions; its number is"
                    " from Renyi DP, add/remove.", "setting", RENYI)
            for s in bounds.GRID
        )},
    ),
    Peer(
        "jax-privacy", "JAX-Privacy", "Apache-2.0", "lower bounds on epsilon from canaries' scores",
        Environment("jax-privacy", ("jax-privacy==2.0.0",), "import jax_privacy.auditing"), ("jax-privacy", "jax"),
        lambda quick: {"bounds": tuple(
            Contest(f"lower bound, {m}", f"epsilon_lower_bound, {m}", f"jax_privacy, {m}",
                    "2,000 scores on each side, 95 %. Ours chooses a threshold on 30 % of the runs and counts on the"
                    " others; theirs takes all thresholds and all runs, "
                    + ("corrected by Bonferroni." if m == "gdp" else "as it does by default, with Bonferroni's"
                       " strategy."), "audit")
            for m in ("clopper-pearson", "gdp")
        )},
    ),
)  # fmt: skip
"""In the order of the table."""


def notes(key: str, quick: bool = False) -> dict[str, str]:
    """Why a peer is faster: race -> reason, as far as one is known."""
    found = next(peer for peer in PEERS if peer.key == key)
    return {race.name: race.note for races in found.works(quick).values() for race in races}
