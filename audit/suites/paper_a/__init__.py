""" "Explaining the Model, Protecting Your Data": what its published figures are."""
