"""Which attack finds most, and what the recommended hardening leaves of it."""
