"""What is said about words and keys that nothing takes."""

from __future__ import annotations

from collections.abc import Sequence

from hexloop.domain.wording import RefusalError, did_you_mean


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
        known = [option.lstrip("-") for option in options]
        remedy = did_you_mean(name.lstrip("-"), known, "leave it out.", spell="--{}".format, similarity=0.7)
        problems.append(f"You gave {given}, but there is no such option; {remedy}")
    return problems


def refusal_of_key(name: str, known: Sequence[str]) -> RefusalError:
    """Why the key `name` is refused, which is none of those `known`."""
    remedy = did_you_mean(str(name), known, "leave it out", similarity=0.7)
    return RefusalError("no class has a field of that name", remedy)
