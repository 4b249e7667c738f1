"""Pairs of strings in, batches of token ids out."""
