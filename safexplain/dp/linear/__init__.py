"""Linear models with differential privacy."""
