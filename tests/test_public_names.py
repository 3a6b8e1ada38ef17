"""The names that other people's scripts call, where they call them."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import safexplain
from safexplain import (
    GaussianNoise,
    HardenedIG,
    Hardening,
    RangeClip,
    ThresholdMask,
    harden,
)

NAMES = {
    "safexplain": """HardenedIG HardenedSaliency HardenedInputXGradient HardenedGuidedBackprop HardenedDeconvolution
        HardenedDeepLift HardenedSmoothGrad HardenedVarGrad HardenedGradientShap HardenedOcclusion HardenedKernelShap
        HardenedLime HardenedGradCAM HardenedGradCAMPlusPlus HardenedProtoDash HardenedAnchors superpixels Hardening
        RangeClip NormClip UnitNorm ThresholdMask TopKMask GaussianNoise harden model_digest""",
    "safexplain.explain": "find_row anchor_hardening default_layer grid_segments",
    "safexplain.explain.surrogate": "PublicExplainer StudentExplainer",
    "safexplain.captum": "IntegratedGradients LayerGradCam NeuronGradient",
    "safexplain.testing": "check_explainer planted find_markers",
    "safexplain.audit": """Signals Population Policy Recipe train_shadows fine_tune FineTune collect_signals audit
        certify""",
    "safexplain.audit.attacks": "LikelihoodRatio Threshold Learned RMIA",
    "safexplain.audit.canaries": "CanaryProbe run_canaries Claim preset audit_training",
    "safexplain.dp": "epsilons noise_multiplier composed DPFineTuner DPLogisticRegression statement_from",
    "safexplain.verdict.stats": "roc tpr_at_fpr clopper_pearson epsilon_lower_bound",
    "safexplain.serve": "Service router app Limits",
    "safexplain.loading": "load_model load_data",
    "safexplain.ledger": "Ledger BudgetExhausted Pure Approximate Concentrated Renyi",
    "safexplain.recourse": """DPModelRecourse LaplaceScore MeteredRecourse Constraints L1 L2 MAD Guarantee Plausibility
        Preprocessing Recourse Rule SearchOptions""",
    "safexplain.errors": "SafexplainError InputError ConfigurationError RefusedError",
}


def test_public_names_are_where_scripts_import_them_from_and_every_listed_name_exists_once():
    for module, names in NAMES.items():
        found = importlib.import_module(module)
        listed = getattr(found, "__all__", names.split())
        assert len(set(listed)) == len(listed), module
        assert [name for name in listed if not hasattr(found, name)] == [], module
        for name in names.split():
            assert name in listed
            assert callable(getattr(found, name)), name
            assert inspect.getdoc(getattr(found, name)), name


def test_there_are_no_more_public_names_than_can_be_learned():
    listed = []
    for path in Path(safexplain.__file__).parent.rglob("__init__.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                listed += ast.literal_eval(node.value)
    assert 100 < len(listed) <= 165  # recourse for tables (Preprocessing, Plausibility, Rule ...) has ten


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def test_the_example_of_the_design_runs():
    from captum.attr import IntegratedGradients

    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    hardening = Hardening(
        clip=RangeClip(-0.1, 0.1),
        mask=ThresholdMask(0.01),
        noise=GaussianNoise(std=0.02, key=b"a secret of thirty-two bytes...."),
    )
    model = net()
    released = HardenedIG(model, hardening=hardening).attribute(x, target=y, n_steps=25)
    assert released.shape == x.shape
    again = harden(IntegratedGradients(model), hardening).attribute(x, target=y, n_steps=25)
    assert torch.equal(again, released)
    assert not torch.equal(released, IntegratedGradients(model).attribute(x, target=y, n_steps=25))


def test_the_attack_takes_arrays_as_scripts_pass_them():
    from safexplain.audit.attacks import LikelihoodRatio, Threshold
    from safexplain.verdict.stats import roc, tpr_at_fpr

    rng = np.random.default_rng(0)
    member = rng.random((9, 50)) < 0.5
    signal = rng.random((9, 50)) - member
    scores = LikelihoodRatio()(signal[0], signal[1:], member[1:])
    assert scores.shape == (50,)
    assert roc(scores, member[0]).auc > 0.9
    assert tpr_at_fpr(scores, member[0], 0.1).tpr > 0.5
    assert Threshold()(signal[0]).shape == (50,)


def test_what_one_does_not_use_is_not_imported():
    code = (
        "import sys\n"
        "def unwanted(*names): return {name for name in names if name in sys.modules}\n"
        "import safexplain\n"
        "assert not (found := unwanted('dp_accounting', 'sklearn', 'opacus')), found\n"
        "from safexplain.cli import app\n"
        "app()\n"
        "assert not (found := unwanted('alibi', 'opacus', 'timm', 'transformers')), found\n"
        "safexplain.HardenedIG\n"
        "assert not (found := unwanted('dp_accounting', 'sklearn', 'opacus', 'scipy.stats')), found\n"
        "import safexplain.recourse\n"
        "assert unwanted('dp_accounting', 'sklearn')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
