"""safexplain.verdict.canaries."""
