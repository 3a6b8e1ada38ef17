"""Verdicts about releases, without torch, so that every reader of a certificate can recompute them.

`evidence` holds counts, `judgement` computes bounds and the verdict from them, `certificate` writes and reads files.
"""
