"""safexplain.audit.canaries.trainer."""
