"""The commands: each parses its options, calls one function of the packages below, and prints."""

from mtrain.runtime.console import exit_on_interrupt

__all__ = ["main"]


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, also while it is imported."""
    exit_on_interrupt()
    from mtrain.cli import app

    app.main()
