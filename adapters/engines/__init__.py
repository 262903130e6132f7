"""Engines: how a model is spread over processes, and how it is updated; one folder an engine."""
