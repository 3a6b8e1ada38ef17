"""How often a verdict is wrong, and how often it is reached."""
