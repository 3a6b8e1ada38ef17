"""safexplain.dp.linear."""
