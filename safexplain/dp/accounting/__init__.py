"""safexplain.dp.accounting."""
