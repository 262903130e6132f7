"""Answers to the Hub port."""
