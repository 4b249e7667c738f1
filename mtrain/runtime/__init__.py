"""The process and its machine: errors, files, terminal, signals, devices, ranks."""
