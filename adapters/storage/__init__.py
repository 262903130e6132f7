"""Where the bytes of a checkpoint go: a file a technology."""
