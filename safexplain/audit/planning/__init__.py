"""What an audit will cost, and what it can decide at best, before it is run.

`measure` trains a few steps, and asks and explains a few examples, with the clock running; `made_up` signals of the
audit's true widths are attacked; `plan` puts the rates together into what the whole audit does; `reach` says what the
sample could certify.
"""

from safexplain.audit.planning.plan import Plan as Plan
from safexplain.audit.planning.plan import Stage as Stage
from safexplain.audit.planning.plan import plan_audit as plan_audit
