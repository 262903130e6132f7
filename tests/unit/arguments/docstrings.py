"""The help of each argument in the docstrings of the classes of arguments, where editors find it.

`python -m tests.unit.arguments.docstrings` writes it into the source. Editors read source, and not what a program makes
of it, so the declarations cannot be the only place.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

from hexloop.app.arguments.arguments import TrainingArguments
from hexloop.app.arguments.fine_tuning import SFTConfig
from hexloop.app.arguments.sequence_to_sequence import Seq2SeqTrainingArguments

CLASSES: tuple[type[Any], ...] = (TrainingArguments, Seq2SeqTrainingArguments, SFTConfig)

SECTION = re.compile(r"(?<=\n)    Args:\n.*?(?=\n    Raises:)", re.DOTALL)


def section(cls: type[Any]) -> str:
    """Return the section of a class's docstring that names every argument, each in a line, as editors expect."""
    entries = [f"        {field.name}: {field.metadata['help']}" for field in dataclasses.fields(cls) if field.init]
    return "    Args:\n" + "\n".join(entries) + "\n"


def source(cls: type[Any]) -> tuple[Path, str, str]:
    """Return the file of a class, its text, and its text with the section of that class brought up to date."""
    file = Path(inspect.getfile(cls)).resolve()
    text = file.read_text(encoding="utf-8")
    before, statement, after = text.partition(f"\nclass {cls.__name__}(")
    return file, text, before + statement + SECTION.sub(lambda _: section(cls), after, count=1)


if __name__ == "__main__":
    for each in CLASSES:
        file, _, current = source(each)
        file.write_text(current, encoding="utf-8")
