"""The work: what is made once, what each side does with it, and how good the answers are; a file a kind of work."""
