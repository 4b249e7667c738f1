"""A model in, the files of another engine out, after a check that both translate alike.

`convert.export` is `mtrain export`. `ctranslate2_format` and `marian_format` write the weights and
load them again, `argos_format` packs them, and `parity.compare` compares the translations.
"""
