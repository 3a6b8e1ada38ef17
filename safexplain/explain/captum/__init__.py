"""safexplain.explain.captum."""
