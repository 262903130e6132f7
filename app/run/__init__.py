"""How a Trainer builds and drives a run."""
