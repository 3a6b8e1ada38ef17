"""What the commands run: all that imports PyTorch, apart from the options, so that `--help` comes at once."""
