"""safexplain.dp.heads."""
