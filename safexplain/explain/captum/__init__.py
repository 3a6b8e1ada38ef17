"""What Captum lacks for the explainers here.

`explainers` has methods and layouts of layers, `model_checks` refusals, and `rewrite` turns functions into modules.
"""
