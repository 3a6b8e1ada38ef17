"""safexplain.audit.attacks.learned."""
