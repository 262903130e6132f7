"""Checkpoints: what makes one complete, how one comes to be, which are kept, which is resumed from.

A checkpoint is a folder with a valid manifest. The manifest is written last, and the folder appears whole or not at
all, so that a process may die at any instant and a reader still finds complete checkpoints only.
"""
