"""What an audit will cost, and what it can decide at best, before it runs."""

from safexplain.audit.planning.plan import Plan as Plan
from safexplain.audit.planning.plan import Stage as Stage
from safexplain.audit.planning.plan import plan_audit as plan_audit
