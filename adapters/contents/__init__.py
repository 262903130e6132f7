"""What a checkpoint holds, as files: a folder a layout."""
