"""Verdicts about releases, without torch, so that every reader of a certificate can recompute them."""
