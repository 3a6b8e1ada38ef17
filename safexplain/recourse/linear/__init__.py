"""safexplain.recourse.linear."""
