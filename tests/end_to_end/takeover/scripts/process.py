"""Prints what a program sees of its process, and ends in the way that its first argument names."""

# A user's script, without types.
# mypy: ignore-errors

import sys

from transformers import Trainer


def fail():
    try:
        raise KeyError("first")
    except KeyError as error:
        raise ValueError("second") from error


how = sys.argv[1] if len(sys.argv) > 1 else ""
print(sys.argv[1:], sys.path[0], __name__, __file__, __package__ or "", sys.modules["__main__"].fail is fail)
print(Trainer.__module__.split(".")[0])
if how == "code":
    sys.exit(7)
if how == "text":
    sys.exit("a text")
if how == "none":
    sys.exit()
if how == "raise":
    fail()
if how == "interrupt":
    raise KeyboardInterrupt
