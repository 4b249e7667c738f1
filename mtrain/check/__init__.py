"""What `mtrain check` and `mtrain init` find out about text before anything is trained."""
