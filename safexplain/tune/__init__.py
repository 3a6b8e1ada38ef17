"""The search for a release: which hardening and which explainer options leak least and keep most.

`space` lists what may be tried: steps of a `Hardening`, and options of catalog rows. `natives` asks each model once for
its native maps; `objectives` hardens them and measures utility and leak, on examples of the selection split only.
`study` walks through the space with Optuna, keeps its results on disk, has the chosen point confirmed by `audit` on
other examples, and plans all that. `result` has what is measured: points, their front, the chosen one; `tuned` what
comes out, with its confirmation; `page` shows it.
"""

from safexplain.tune.result import Point as Point
from safexplain.tune.result import Study as Study
from safexplain.tune.study import tune as tune
from safexplain.tune.tuned import Tuned as Tuned
