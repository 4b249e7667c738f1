"""Strings against strings: BLEU, chrF and TER by sacreBLEU, comparisons, notes."""
