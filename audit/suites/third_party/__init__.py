"""Public networks that nobody here trained: the audit of them is frozen (page.md)."""
