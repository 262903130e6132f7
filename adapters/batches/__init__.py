"""Adapters of the Batches port."""
