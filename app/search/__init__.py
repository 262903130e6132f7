"""Hyperparameter search: how trials are proposed, run, recorded and compared, and what a search returns."""
