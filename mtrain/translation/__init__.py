"""Lines in, translations out: search, scoring, word links."""
