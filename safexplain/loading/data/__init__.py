"""safexplain.loading.data."""
