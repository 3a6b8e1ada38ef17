"""Which attack finds most, and what ranks with noise leave of it."""
