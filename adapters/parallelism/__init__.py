"""Answers to the Parallelism port."""
