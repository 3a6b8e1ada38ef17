"""What Captum lacks: methods and layouts of layers, checks of models, and functions turned into modules."""
