"""safexplain.hardening."""
