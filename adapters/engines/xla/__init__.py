"""The engines of XLA."""
