"""Evidence about this release, no part of the package: `suites` measure, `benchmarks` time, `results` are theirs.

`shared` is what all of them use, `pages` writes README.md and docs/evidence from the results, and `gpu` runs in order
what needs a graphics card. Everything is run from the repository root, as `python -m audit.suites.paper_a`.
"""
