"""What is said about words and keys that nothing takes."""

from __future__ import annotations

from collections.abc import Sequence

from hexloop.app.arguments.names import nearest
from hexloop.app.arguments.problems import RefusalError


def unknown_words(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """A problem for each option, with its value if one follows, and for each word that is left."""
    problems, left = [], list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            problems.append(f"You gave {word!r}, but no option takes it; remove it.")
            continue
        name, _, value = word.partition("=")
        if not value and left and not left[0].startswith("-"):
            value = left.pop(0)
        given = f"{name} {value}".strip()
        meant = nearest(name.lstrip("-"), [option.lstrip("-") for option in options])
        remedy = f"did you mean --{meant}?" if meant else "leave it out."
        problems.append(f"You gave {given}, but there is no such option; {remedy}")
    return problems


def refusal_of_key(name: str, known: Sequence[str]) -> RefusalError:
    """Why the key `name` is refused, which is none of those `known`."""
    meant = nearest(str(name), known)
    return RefusalError("no class has a field of that name", f"did you mean {meant}?" if meant else "leave it out")
