"""Recourse of networks, found by search and verified by their own scores."""
