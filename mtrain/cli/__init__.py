"""The commands: each parses its options, calls one function of the packages below, and prints."""

from mtrain.cli.app import main

__all__ = ["main"]
