"""Files of words, which stand for words of the command line."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from hexloop.domain.errors import ConfigurationError


def words_of_files(
    words: Sequence[str], beside_script: bool, filename: str | os.PathLike[str] | None, flag: str | None
) -> list[str]:
    """All words to read: those of files first, then those of the command line, so that the latter replace them.

    beside_script: whether to look for a file with the script's name that ends in ".args". filename: the file to read
    instead. flag: an option among the words that names a file, and may come more than once.

    Raises ConfigurationError where a file was named and cannot be read.
    """
    read = _words_of(Path(filename)) if filename else _words_beside_script() if beside_script else []
    left = list(words)
    if flag:
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument(flag, dest="files", action="append", default=[])
        found, left = parser.parse_known_args(left)
        read += [word for file in found.files for word in _words_of(Path(file))]
    return read + left


def _words_beside_script() -> list[str]:
    script = Path(sys.argv[0]) if sys.argv else Path()
    file = script.with_suffix(".args") if script.name else None
    return _words_of(file) if file and file.exists() else []


def _words_of(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            [f"You chose the file {str(file)!r} for arguments, but it cannot be read ({error}); name a readable one."]
        ) from error
