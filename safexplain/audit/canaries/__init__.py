"""Canaries: does a differentially private training keep the epsilon that it claims, if one record is substituted?

`setting` describes a training; `reference` trains it without noise, to find its target record; `make_canary` makes what
stands in the record's place in D' (`canary`; inputs of its own by `craft_input`). Models are trained on D and on D',
side by side (`batched`) or by anybody's function (`trainer`), and scored; `safexplain.verdict.canaries` judges scores.
`run` goes this way for a setting, `audit_training` for a `DPFineTuner`, `CanaryProbe` for a function; `plot` draws.
"""

from safexplain.audit.canaries.audit_training import audit_training
from safexplain.audit.canaries.run import run_canaries, run_once
from safexplain.audit.canaries.setting import Setting, preset
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.verdict.canaries.claim import Claim
from safexplain.verdict.canaries.result import load_finding

__all__ = ["CanaryProbe", "Claim", "Setting", "audit_training", "load_finding", "preset", "run_canaries", "run_once"]
