"""Checkpoints: the commit protocol, verified reading, the choice of the one to resume from, rotation.

A checkpoint is a folder with a valid manifest. The manifest is written last, and the folder appears as a whole or not
at all, so a reader only ever finds complete checkpoints, even if a process dies at any instant.
"""
