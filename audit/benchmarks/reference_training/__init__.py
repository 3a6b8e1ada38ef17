"""How fast reference models train, in each setting of a recipe."""
