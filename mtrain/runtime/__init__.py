"""The process and its machine, for all other packages.

`errors` has the errors that users see. `files`, `outputs`, `lock` and `json_reader` handle files;
`console`, `log` and `stop` the terminal and signals; `device`, `distributed` and `workers`
processors, ranks and worker processes.
"""
