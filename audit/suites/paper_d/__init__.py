""" "DeepLeak": what its evaluation reports where nothing can leak."""
