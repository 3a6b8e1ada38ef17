"""Which releases of an explanation add nothing to the labels of the same queries, and what is left to read in them."""
