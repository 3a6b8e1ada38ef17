"""What a training spends, and what a budget buys.

`epsilons` and its relatives live in `safexplain._privacy_loss`, which has the proofs and the tables (certificates need
them too, without torch), and are to be had here. `calibration` goes from a budget back to noise and steps. What was
spent is stated by `safexplain.verdict.privacy_statement.PrivacyStatement`.
"""

from __future__ import annotations

from safexplain._privacy_loss import Epsilons as Epsilons
from safexplain._privacy_loss import Steps as Steps
from safexplain._privacy_loss import composed as composed
from safexplain._privacy_loss import epsilons as epsilons
from safexplain._privacy_loss import group_privacy_epsilon as group_privacy_epsilon
from safexplain.dp.accounting.calibration import noise_multiplier as noise_multiplier
from safexplain.dp.accounting.calibration import steps_within as steps_within
