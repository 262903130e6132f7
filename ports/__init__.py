"""The interfaces between training and the outside world: one small Protocol per file, with its value types."""
