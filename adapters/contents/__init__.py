"""Contents adapters: the files of a checkpoint, in the layout that `from_pretrained` of transformers loads."""
