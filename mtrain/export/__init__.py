"""Export of a model to another engine, after a check that both translate alike."""
