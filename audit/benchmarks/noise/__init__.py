"""What cryptographic noise costs."""
