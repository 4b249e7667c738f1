"""A model in the form of another engine, proved to translate alike."""
