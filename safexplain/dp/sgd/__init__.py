"""safexplain.dp.sgd."""
