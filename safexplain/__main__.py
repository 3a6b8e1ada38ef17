"""`python -m safexplain`, the same as the command `safexplain`.

It is there for environments whose scripts are not on the path, as on a cluster or under another interpreter.
"""

from safexplain.cli import main

if __name__ == "__main__":
    main()
