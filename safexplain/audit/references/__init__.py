"""safexplain.audit.references."""
