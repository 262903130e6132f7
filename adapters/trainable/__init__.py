"""Answers to the Trainable port."""
