"""One process that holds the whole model, on one device or on several GPUs."""
