"""What the commands run: all that imports PyTorch, apart from the options, so that `--help` comes at once.

`question` turns the options of `audit` and `tune` into arguments of the library; `tables` and `planned` print.
"""
