"""What Captum lacks for the explainers here: methods, checks of models, and functions as modules."""
