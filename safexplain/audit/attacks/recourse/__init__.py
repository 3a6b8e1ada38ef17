"""safexplain.audit.attacks.recourse."""
