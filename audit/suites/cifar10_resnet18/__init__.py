"""The audit at the scale of a ResNet-18; needs a GPU."""
