"""Adapters of the Trainable port."""
