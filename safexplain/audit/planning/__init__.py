"""What an audit will cost, and what it can decide at best, before it is run.

`measure` has the clock and the slope between two amounts of work; `plan` trains a few steps, asks and explains a few
examples, and puts the rates together into what the whole audit does; `canaries` does so for canaries.
"""

from safexplain.audit.planning.plan import Plan as Plan
from safexplain.audit.planning.plan import Stage as Stage
from safexplain.audit.planning.plan import plan_audit as plan_audit
