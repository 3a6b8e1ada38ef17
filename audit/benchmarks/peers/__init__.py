"""safexplain against other libraries, on the same work, in one run."""
