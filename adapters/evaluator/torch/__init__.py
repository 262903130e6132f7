"""Evaluation of torch modules."""
