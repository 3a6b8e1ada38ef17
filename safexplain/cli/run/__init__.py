"""What the commands run: everything that imports PyTorch, apart from the options, so that `--help` comes at once.

`question` turns the options of `audit` and `tune` into arguments of the library (`recipes`, `stages` and `quick` help
it); `tune`, `canaries`, `demo` and `verify` run the commands of these names, the second by a `canary_config`; `tables`
and `planned` print what was found, or what it would cost.
"""
