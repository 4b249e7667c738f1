"""Models in the form of other engines, which must translate alike."""
