"""Answers to the Device port."""
