"""DeepSpeed's configuration: read, completed from the arguments, and compared with them."""
