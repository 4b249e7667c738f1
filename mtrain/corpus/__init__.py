"""Files of parallel text in, pairs of strings out: the two sides always stay aligned."""
