"""Batches from torch datasets and loaders."""
