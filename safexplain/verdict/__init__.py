"""safexplain.verdict."""
