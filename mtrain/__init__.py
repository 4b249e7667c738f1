"""mtrain: raw parallel text in, a from-scratch translation model and its score out."""

__version__ = "0.1.0"
