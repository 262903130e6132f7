"""The one way in which commands print: without secrets, and without control characters that a terminal would obey."""

from __future__ import annotations

import json
import os
import sys
from typing import TextIO

from hexloop.domain.redaction import printable, printable_lines, redact, redacted, remember_secrets, secret_values


def print_lines(*lines: str, to: TextIO | None = None) -> None:
    """Print lines, each on one line whatever it contains. to: by default standard output."""
    print("\n".join(printable(redact(line)) for line in lines), file=to or sys.stdout, flush=True)


def print_document(document: object) -> None:
    """Print a JSON document on standard output; values without a JSON form as text."""
    print(json.dumps(redacted(document), indent=2, default=str), flush=True)


def print_text(text: str, to: TextIO | None = None) -> None:
    """Print a text with its line breaks, such as a message. to: by default standard error."""
    print(printable_lines(redact(text)), file=to or sys.stderr, flush=True)


def remember_secrets_of_environment() -> None:
    """Remove the values of environment variables such as HF_TOKEN from everything that is written or printed."""
    remember_secrets(secret_values(os.environ))
