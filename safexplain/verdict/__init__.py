"""What may be said about a release, without torch: whoever reads a certificate can compute all of it again.

A `policy` says what counts as a leak. `thresholds` fixes, from the policy and the sizes alone, above which ranks
members are counted; `evidence` holds these counts and the controls; `judgement` draws bounds and the verdict from them;
`power` says what a sample could decide at all. `stats` has the intervals and bounds, `canaries` the findings about a
training, `privacy_statement` the guarantee of one, and `certificate` writes a judgement to a file and reads it back.
"""
