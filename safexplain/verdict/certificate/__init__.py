"""safexplain.verdict.certificate."""
