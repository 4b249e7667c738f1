"""Find faults in parallel text, by file and line, and forecast the training.

`diagnosis.diagnose` is `mtrain check`, `starter.write_config` is `mtrain init`.
"""
