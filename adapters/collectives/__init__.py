"""Answers to the Collectives port."""
