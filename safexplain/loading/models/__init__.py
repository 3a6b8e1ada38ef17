"""safexplain.loading.models."""
