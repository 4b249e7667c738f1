"""Every setting of a run: strict YAML in, a checked `Config` out."""
