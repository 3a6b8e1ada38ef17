"""safexplain.recourse.networks."""
