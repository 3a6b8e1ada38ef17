"""The names that other people's scripts call, where they call them."""

import importlib
import inspect
import subprocess
import sys

import torch
from torch import nn

from safexplain import GaussianNoise, HardenedIG, Hardening, RangeClip, ThresholdMask, harden

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


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def test_the_example_of_the_design_runs():
    from captum.attr import IntegratedGradients

    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    noise = GaussianNoise(std=0.02, key=b"a secret of thirty-two bytes....")
    hardening = Hardening(clip=RangeClip(-0.1, 0.1), mask=ThresholdMask(0.01), noise=noise)
    model = net()
    released = HardenedIG(model, hardening=hardening).attribute(x, target=y, n_steps=25)
    assert released.shape == x.shape
    again = harden(IntegratedGradients(model), hardening).attribute(x, target=y, n_steps=25)
    assert torch.equal(again, released)
    assert not torch.equal(released, IntegratedGradients(model).attribute(x, target=y, n_steps=25))


def test_what_one_does_not_use_is_not_imported():
    code = (
        "import importlib.util, sys\n"
        "def unwanted(*names):\n"
        "    assert all(map(importlib.util.find_spec, names))\n"
        "    return {name for name in names if name in sys.modules}\n"
        "import safexplain\n"
        "assert not (found := unwanted('dp_accounting', 'sklearn', 'opacus')), found\n"
        "from safexplain.cli import app\n"
        "app()\n"
        "assert not (found := unwanted('alibi', 'opacus', 'timm', 'transformers')), found\n"
        "safexplain.HardenedIG\n"
        "assert not (found := unwanted('dp_accounting', 'sklearn', 'opacus', 'scipy.stats')), found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
