"""`python -m mtrain` is the `mtrain` command."""

from mtrain.cli import main

if __name__ == "__main__":
    main()
