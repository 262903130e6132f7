"""Answers to the Evaluator port."""
