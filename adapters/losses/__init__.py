"""Answers to the Losses port."""
