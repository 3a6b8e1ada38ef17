"""safexplain.audit.canaries.batched."""
