"""Translations and references in, scores and comparisons out.

`metrics` calls sacreBLEU for BLEU, chrF and TER, and `external` a program of the user.
`references` reads files that must match line for line. `compare.compare` is `mtrain compare`, `mbr`
chooses among several translations, and `notes` names faults that may explain a low score.
`suitability` warns of text that scores or a model cannot rely on.
"""
