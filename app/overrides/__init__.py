"""Wrappers that let the overridden methods of a Trainer stand in the place of the standard ones."""
