"""Pairs of strings in, batches of token ids out.

`prepare.Preparation` prepares the text of a config: the vocabulary (`vocabulary`, `tokenizer`), the
pairs that `filters` keep, and their ids (`store`, shared between runs by `cache`). `batches` makes
the batches of training from them; `augment` and `bpe_dropout` change the text in each epoch.
`duplicates`, `mix_ups` and `styles` find text that is not fit to train on.
"""
