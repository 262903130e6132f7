"""Hyperparameter search without a framework: its space, its record on the disk, and the choice of the best trial."""
