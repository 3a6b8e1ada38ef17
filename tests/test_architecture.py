"""Which module may import which, read from the source, so that an import that nothing runs is found too."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import safexplain

ROOT = Path(safexplain.__file__).parent

FORBIDDEN = {
    "safexplain.errors": ("safexplain", "torch"),
    "safexplain.hardening.noise": ("safexplain.explain", "safexplain.audit", "safexplain.cli"),
    "safexplain._validate": ("safexplain.explain", "safexplain.audit", "safexplain.cli", "torch"),
    "safexplain.hardening.clips": ("safexplain.explain", "safexplain.audit", "safexplain.cli"),
    "safexplain.hardening.hardening": ("safexplain.explain", "safexplain.audit", "safexplain.cli"),
    "safexplain._digest": (
        "safexplain.explain",
        "safexplain.audit",
        "safexplain.cli",
        "safexplain.hardening.hardening",
    ),
    "safexplain.explain": ("safexplain.audit", "safexplain.cli"),
    "safexplain.audit": ("safexplain.explain", "safexplain.hardening.hardening", "safexplain.cli"),
    "safexplain.verdict.stats": ("torch",),
    "safexplain.verdict.certificate.write": ("torch",),
    "safexplain.verdict.judgement": ("torch",),
    "safexplain.verdict.certificate.sign": ("torch",),
    "safexplain.audit.utility": ("torch",),
    "safexplain.verdict.power": ("torch",),
    "safexplain.verdict.certificate.read": ("torch",),
    "safexplain.verdict.canaries.finding": ("torch",),
    "safexplain.verdict.canaries.result": ("torch",),
    "safexplain.verdict.canaries.read": ("torch",),
    "safexplain.testing": ("safexplain.audit", "safexplain.cli"),
    "safexplain.dp": ("safexplain.audit", "safexplain.cli", "safexplain.explain", "safexplain.hardening.hardening"),
    "safexplain._privacy_loss": ("torch", "opacus"),
    "safexplain.dp.accounting.calibration": ("torch", "opacus"),
    "safexplain.verdict.privacy_statement": ("torch", "opacus"),
    "safexplain.dp.accounting.plot": ("torch", "opacus"),
    "safexplain.dp.linear.mechanisms": ("torch", "opacus"),
    "safexplain.recourse": ("safexplain.audit", "safexplain.cli"),
    "safexplain.recourse.linear.solve": ("torch",),
    "safexplain.recourse.mechanisms.guarantee": ("torch",),
    "safexplain.ledger": (
        "safexplain.audit",
        "safexplain.cli",
        "safexplain.dp",
        "safexplain.explain",
        "safexplain.hardening.hardening",
        "safexplain.recourse",
        "torch",
    ),
    "safexplain": ("safexplain.cli", "safexplain.testing"),
}
"""Module or package -> what neither it nor anything below it may reach, directly or through other modules here."""

EXCEPT = ("safexplain.cli", "safexplain.testing")
"""Not held to the rules of the packages above it."""


DOORS = {
    ("safexplain.explain.certified", "safexplain.verdict.certificate.write"),
    ("safexplain.explain.certified", "safexplain.verdict.certificate.read"),
    ("safexplain.dp.sgd.finetune", "safexplain.audit.canaries.audit_training"),
}
"""Imports that are not followed: production reads a certificate, which needs no torch and none of the attacks; and
`DPFineTuner.audit` is a way to call the audit, of which training uses nothing."""


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def sources(root: Path, package: str) -> dict[str, str]:
    """Module name -> source of every module of a package."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = [package, *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


@cache
def named(source: str) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """(level, module, names) of every import statement of a source; each source is parsed once."""
    found: list[tuple[int, str, tuple[str, ...]]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or "", tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_module", "importlib.import_module"):
            found += [(0, a.value, ()) for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return tuple(found)


def imports(module: str, modules: dict[str, str], packages: set[str]) -> set[str]:
    """Every module that a module names in an import statement, wherever it stands, relative or not."""
    here = module.split(".") if module in packages else module.split(".")[:-1]
    found = set()
    for level, of, names in named(modules[module]):
        start = here[: len(here) - level + 1] if level else []
        source = ".".join([*start, *([of] if of else [])])
        inner = {f"{source}.{name}" for name in names}
        found |= {name if name in modules else source for name in inner} or {source}
    return found - {module}


def reach(module: str, graph: dict[str, set[str]]) -> dict[str, str]:
    """What a module imports, directly or not -> through which module."""
    seen: dict[str, str] = {}
    waiting = [(module, "")]
    while waiting:
        current, through = waiting.pop()
        for name in sorted(graph.get(current, ())):
            if name not in seen:
                seen[name] = through or module
                waiting.append((name, name))
    return seen


def violations(modules: dict[str, str], forbidden: dict[str, tuple[str, ...]] = FORBIDDEN) -> list[str]:
    """Broken rules, one line each. Importing a package's `__init__` is only counted where it is named."""
    packages = {m for m in modules if any(n.startswith(m + ".") for n in modules)}
    graph = {m: {n for n in imports(m, modules, packages) if (m, n) not in DOORS} for m in modules}
    lines = []
    for module in modules:
        for package, banned in forbidden.items():
            if not within(module, package) or any(within(module, e) for e in EXCEPT if not within(package, e)):
                continue
            for name, through in reach(module, graph).items():
                if any(within(name, b) for b in banned) and not within(name, package if package in banned else "\0"):
                    lines.append(f"{module} reaches {name} (through {through})")
    return lines


MODULES = sources(ROOT, "safexplain")


def test_dependencies_point_the_right_way():
    assert violations(MODULES) == []


def test_the_whole_package_was_read():
    assert {
        "safexplain",
        "safexplain.hardening.hardening",
        "safexplain.verdict.stats",
        "safexplain.audit.attacks.base",
    } <= set(MODULES)
    assert len(MODULES) > 30


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("safexplain.hardening.hardening", "import safexplain.explain"),
        ("safexplain.hardening.hardening", "from safexplain.explain.wrap import harden"),
        ("safexplain.hardening.hardening", "from safexplain import audit"),
        ("safexplain.hardening.noise", "def f():\n    from safexplain.verdict.stats import roc"),
        ("safexplain.hardening.clips", "from .audit import stats"),
        ("safexplain.hardening.clips", "from . import cli"),
        ("safexplain.explain.wrap", "from safexplain.audit import Signals"),
        ("safexplain.audit.references.shadows", "from safexplain.hardening.hardening import Hardening"),
        ("safexplain.audit.references.shadows", "from safexplain import Hardening"),
        ("safexplain.audit.signals", "from ..explain import harden"),
        ("safexplain.audit.attacks.base", "if TYPE_CHECKING:\n    from safexplain.explain import harden"),
        (
            "safexplain.audit.attacks.base",
            "import importlib\nimportlib.import_module('safexplain.hardening.hardening')",
        ),
        ("safexplain.audit.certify", "import safexplain.cli.app as app"),
        ("safexplain.verdict.stats", "import torch"),
        ("safexplain.verdict.stats", "from torch import Tensor"),
        ("safexplain.verdict.certificate.write", "from safexplain.audit.signals import Signals"),
        ("safexplain.verdict.certificate.read", "from safexplain.audit.signals import Signals"),
        ("safexplain.verdict.judgement", "import torch"),
        ("safexplain.explain.certified", "from safexplain.audit.certify import audit"),
        ("safexplain.explain.certified", "from safexplain.audit import load_certificate"),
        ("safexplain.explain.wrap", "from safexplain.verdict.certificate.read import load_certificate"),
        ("safexplain.hardening.hardening", "from safexplain.verdict.certificate.read import load_certificate"),
        ("safexplain.errors", "import torch.nn"),
        ("safexplain.dp", "from safexplain.verdict.stats import clopper_pearson"),
        ("safexplain._privacy_loss", "from safexplain.dp.sgd.clipping import FlatClipping"),
        ("safexplain.verdict.privacy_statement", "from safexplain.dp.sgd.optimizers import ClippedOptimizer"),
        ("safexplain.recourse.networks.search", "import safexplain.audit"),
        ("safexplain.recourse.linear.solve", "from safexplain.recourse.networks.search import search_recourse"),
        ("safexplain.ledger.composition", "import torch"),
        ("safexplain.ledger", "from safexplain.recourse import LaplaceScore"),
        ("safexplain", "from safexplain.cli import main"),
    ],
)
def test_a_forbidden_import_is_found(module, line):
    planted = {**MODULES, module: f"{MODULES.get(module, '')}\n{line}\n"}
    found = violations(planted)
    assert any(v.startswith(f"{module} reaches ") for v in found)


def test_every_door_is_used():
    packages = {m for m in MODULES if any(n.startswith(m + ".") for n in MODULES)}
    assert all(to in imports(module, MODULES, packages) for module, to in DOORS)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("safexplain.explain.wrap", "from safexplain.hardening.hardening import Hardening"),
        ("safexplain.audit.attacks.base", "from safexplain.verdict.stats import roc"),
        ("safexplain.audit.signals", "import torch"),
        ("safexplain.verdict.stats", "# import torch\nNAME = 'import torch'"),
        ("safexplain.cli.demo", "from safexplain.explain import harden\nfrom safexplain.audit import audit"),
        ("safexplain.verdict.stats", "import torchmetrics_like_name"),
    ],
)
def test_an_allowed_import_is_no_violation(module, line):
    assert violations({**MODULES, module: f"{MODULES.get(module, '')}\n{line}\n"}) == []
