"""Public networks that nobody here trained, audited with and without reference models."""
