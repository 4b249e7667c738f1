"""Parallel text in, what is wrong with it out: by file and line, with a forecast of the training.

`diagnosis.diagnose` is `mtrain check`, `starter.write_config` is `mtrain init`.
"""
