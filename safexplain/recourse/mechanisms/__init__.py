"""Mechanisms: scores from which answers are differentially private."""
