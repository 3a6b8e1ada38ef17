"""safexplain.recourse.mechanisms."""
