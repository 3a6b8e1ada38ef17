"""safexplain.loading."""
