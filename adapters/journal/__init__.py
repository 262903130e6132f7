"""Answers to the Journal port."""
