"""Setters for a whole subject at once. Each sets all of its subject, with the defaults of its signature."""
