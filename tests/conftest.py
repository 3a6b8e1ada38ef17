"""Settings of all tests."""

import os

# One thread a test process: the workers share the cores, and small products wait for each other otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# The same examples in every run, and no time limit for one of them: machines that run tests are busy.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
