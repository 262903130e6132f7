"""Answers to the Precision port."""
