"""The part of the commands that imports PyTorch, apart from the options so that `--help` is fast.

`question` turns the options of `audit` and `tune` into arguments of the library; `tables` and `preview` print.
"""
