"""README.md and docs/evidence, written from the results: `tables` knows every table."""
