"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# The same examples in every run, and no time limit for one of them: machines that run tests are busy.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
