"""The commands: each parses its options, calls one function of the packages below, and prints.

`app` lists all commands; `training`, `translating`, `scoring`, `runs` and `settings` have them in
groups. They share `options` (declarations), `opening` (of configs, runs and models), `streams`
(input and output) and `completion`.
"""

import signal

__all__ = ["main"]


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, also while it is imported."""
    # the default action is silent; importing the handler that sets the exit code takes 10 ms
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if SIGINT is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mtrain.runtime.console import exit_on_interrupt

    exit_on_interrupt()
    from mtrain.cli import app

    app.main()
