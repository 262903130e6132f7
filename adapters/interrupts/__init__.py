"""Answers to the Interrupts port."""
