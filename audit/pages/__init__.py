"""audit/README.md and docs/evidence, written from the results by `python -m audit.pages`.

`tables` knows every table of a page, `pages` which suites and tables stand on it.
"""
