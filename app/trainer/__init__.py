"""The Trainer and what it returns."""
