"""Storage adapters: where checkpoints are stored."""
