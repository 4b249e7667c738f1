"""Parallel text in, findings by file and line out, with a forecast of the training.

`diagnosis.diagnose` is `mtrain check`. It runs a `checker.Checker`, which reads each corpus in
`chunks`. `faults` and `words` judge single texts and pairs; `profile`, `associations`, `shifts` and
`mixture` judge whether the sides are translations of each other; `overlap` finds rows of scored
sets in other text. All report to `findings`. `starter.write_config` is `mtrain init`.
"""
