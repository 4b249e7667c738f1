"""What a run leaves on disk: its directory, checkpoints and records, and their readers.

`layout` has the names of the files. `directory.RunDirectory` is a run in training, and
`compatibility` refuses a config that does not belong to it. `checkpoint` saves and loads weights in
directories sealed by `manifest`; `records`, `history`, `synthetic` and `tensorboard` are the other
files. `reader` finds the checkpoint that a path names, and with `sets` reads a run that may be from
somebody else. `verify.verify` is `mtrain verify`.
"""
