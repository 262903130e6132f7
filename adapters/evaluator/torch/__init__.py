"""Evaluation of a torch module."""
