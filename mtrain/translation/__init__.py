"""Lines in, translations out, in the order of the input.

`loading.load` loads models for a `translator.Translator`, which searches each batch (`search`,
`sampling`), several at a time on a CPU (`threads`). `streams` translates input of any length,
`scorer` computes forced scores, and `attention` attention maps and word alignments. `api` is the
Python interface.
"""
