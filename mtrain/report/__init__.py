"""Beside the line: one page of HTML about a run."""
