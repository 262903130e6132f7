"""Answers to the Clock port."""
