"""Models with a gradient for every single sample."""
