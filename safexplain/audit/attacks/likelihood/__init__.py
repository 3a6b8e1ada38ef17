"""safexplain.audit.attacks.likelihood."""
