"""The part of the commands that imports PyTorch, apart from the options so that `--help` is fast."""
