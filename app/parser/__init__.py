"""Attrs classes and dataclasses out of a command line, a mapping or a file, by the reference library's interface."""

from hexloop.app.parser.fields import HfArg
from hexloop.app.parser.parser import HfArgumentParser

__all__ = ["HfArg", "HfArgumentParser"]
