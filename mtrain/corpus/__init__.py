"""Files of parallel text in, pairs of strings out: the two sides always stay aligned.

`readers.scan` counts and hashes a corpus, `readers.read_pairs` reads it. They call `lines` for
plain text, `tables`, `parquet` and `tmx` for files with both sides, `hub` for Hugging Face
datasets, and `phrasebook` for the built-in text. The other modules judge texts: their language
(`language_identification`), script (`writing_systems`), letters that were lost or changed
(`letters`), markup (`markup`), text added by a program (`additions`), and whether two sides belong
together (`misalignment`).
"""
