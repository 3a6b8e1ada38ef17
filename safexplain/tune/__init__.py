"""The search for a release: which hardening and which explainer options leak least and keep most."""

from safexplain.tune.result import Point as Point
from safexplain.tune.result import Study as Study
from safexplain.tune.study import Tuned as Tuned
from safexplain.tune.study import tune as tune
