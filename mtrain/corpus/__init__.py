"""Files of parallel text in, pairs of strings out: no line ever slips against its partner."""
