"""What suites and benchmarks share: `run` (options, data, stored parts, provenance, results), `cells` of audits."""
