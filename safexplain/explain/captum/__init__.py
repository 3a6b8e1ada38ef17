"""What Captum lacks for the explainers here.

`explainers` has the signed gradient, Grad-CAM and Grad-CAM++ in Captum's conventions, the default layer and layouts of
layers as maps; `model_checks` refuses methods that a model silently turns into others, and `rewrite` turns functions
into modules.
"""
