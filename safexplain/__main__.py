"""`python -m safexplain`, the same as the command `safexplain`."""

from safexplain.cli import main

if __name__ == "__main__":
    main()
