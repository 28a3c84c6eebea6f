"""`python -m gapscope`: the command line."""

from gapscope.cli import main

if __name__ == "__main__":
    main()
