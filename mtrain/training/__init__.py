"""Batches in, weights out: the loop, its optimizer, its checkpoints, validation."""
