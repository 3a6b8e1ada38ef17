"""safexplain.dp.models."""
