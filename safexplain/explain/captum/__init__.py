"""What Captum's explainers need beside Captum: explainers that it lacks, layers, and checks of models.

`explainers` has the signed gradient, Grad-CAM and Grad-CAM++ in Captum's conventions; `layers` says which layer is
explained where nobody does, and lays its output out as a map; `model_checks` refuses methods that would silently be
another one on a model. All methods stand as rows in `safexplain.explain.catalog`.
"""
