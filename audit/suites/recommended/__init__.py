"""What `Hardening.recommended()` rests on: attacks under it and twelve alternatives."""
