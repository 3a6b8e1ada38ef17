"""On a GPU: the same contract, the same answers as on the CPU, and nothing that leaves the device."""

import pytest
import torch
from explain_nets import NOISY, hardened_class, images, net_for, quiet, run, target_for, tensors, torch_rows

from safexplain.hardening.hardening import Hardening
from safexplain.testing import check_explainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    quiet,
]


@torch_rows
def test_answers_stay_on_the_device_with_the_noise_of_the_cpu(row):
    if row.stochastic:
        pytest.skip("draws from another generator on a GPU")
    noises = []
    for device in ("cpu", "cuda"):
        model, x = net_for(row).to(device), images().to(device)
        make = hardened_class(row)
        native, released = (tensors(run(make(model, hardening=h), row, x)) for h in (Hardening.none(), NOISY))
        assert {t.device.type for t in released} == {device}
        noises.append([(r - n).cpu() for r, n in zip(released, native, strict=True)])
    for on_cpu, on_gpu in zip(*noises, strict=True):
        torch.testing.assert_close(on_cpu, on_gpu, atol=1e-4, rtol=0)


@torch_rows
def test_the_contract_holds(row):
    x = images().cuda()
    check_explainer(hardened_class(row), net_for(row).cuda(), x, target_for(row).get("target"), options=row.options(x))
