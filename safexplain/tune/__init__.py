"""The search for a release: which hardening, of which explainer options, tells least and keeps most.

`space` says what may be tried: what stands in the slots of a `Hardening`, and the options of catalog rows. `natives`
asks every model once for its native maps; `objectives` hardens them and measures utility and leak, on examples of the
selection split only. `study` walks through the space with Optuna, keeps what it found on disk, and has the point that
it chose confirmed by `audit` on examples that chose nothing. `result` is what is measured: points, their
front, the chosen one; `tuned` what comes out, with its confirmation; `page` shows it.
"""

from safexplain.tune.result import Point as Point
from safexplain.tune.result import Study as Study
from safexplain.tune.study import tune as tune
from safexplain.tune.tuned import Tuned as Tuned
