"""Batches of torch data sets and loaders."""
