"""Beside the line: whether text is fit to learn from, and a first config for it."""
