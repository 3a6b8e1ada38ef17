"""A folder for each paper or question; a folder with one suite is run by its name, others by that of a module in it."""
