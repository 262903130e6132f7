"""Contents adapters: the files of a checkpoint, one folder per layout."""
