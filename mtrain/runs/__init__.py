"""What a run leaves on disk: its directory, checkpoints, records, and who reads them."""
