"""Batches in, weights out.

`job.train` starts, resumes or confirms a run: it checks the run directory, prepares the text and
runs a `trainer.Trainer`. Each step adds up gradients (`learner`, `loss`, `gradients`, and `graphs`
on a GPU) and updates the weights (`optimizer`, at the rate of `schedule`). Checkpoints (`resume`)
and scores (`validation`) follow where they are due. `plan` forecasts a run, and `synthesis` makes
synthetic text before it.
"""
