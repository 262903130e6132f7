"""The interfaces between training and the outside world: small Protocols with their value types, one subject a file."""
