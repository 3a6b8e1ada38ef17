"""How often lower bounds on epsilon are above the truth."""
