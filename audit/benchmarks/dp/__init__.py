"""Benchmarks of training with differential privacy: epsilons, steps of fine-tuning, and heads."""
