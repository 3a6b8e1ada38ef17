"""Verdicts about releases, without torch, so that every reader of a certificate can recompute them.

`policy` defines what counts as a leak; `thresholds` derives from it and the sizes the ranks above which members are
counted; `evidence` holds these counts and the controls; `judgement` computes bounds and the verdict; `power` computes
what a sample can decide. `stats` has intervals and bounds, `canaries` findings about a training, `privacy_statement`
and `guarantee` what holds without an audit, and `certificate` writes and reads files.
"""
