"""What the domain asks of the world: one small Protocol a file, with the value types it speaks in."""
