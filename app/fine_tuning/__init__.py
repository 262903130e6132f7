"""Supervised fine-tuning: samples become tokens and labels, and a model is loaded and prepared for it."""
