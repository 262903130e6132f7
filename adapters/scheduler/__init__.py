"""Answers to the Scheduler port."""
