"""HTML pages: the report on a run, and the attention of a model."""
