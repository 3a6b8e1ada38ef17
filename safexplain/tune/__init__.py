"""The search for a release: which hardening and which explainer options leak least and keep most.

`space` lists what may be tried: steps of a `Hardening`, and options of catalog rows. `natives` computes native maps of
each model once; `objectives` hardens them and measures utility and leak (`leak`), on examples of the selection split
only. `study` searches the space with Optuna, keeps its results on disk, and has the chosen point audited on other
examples. `result` holds points, their front and the choice; `page` shows them.
"""

from safexplain.tune.result import Point as Point
from safexplain.tune.result import Study as Study
from safexplain.tune.study import Tuned as Tuned
from safexplain.tune.study import tune as tune
