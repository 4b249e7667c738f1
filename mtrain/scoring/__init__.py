"""Scores of translations (BLEU, chrF and TER by sacreBLEU), comparisons, and notes on faults."""
