"""Pages and pictures of a run: its curves, translations, scores and attention."""
