"""How many queries about one example a budget of looks lets through."""
