"""Adapters of the Evaluator port."""
