"""Names that are no argument: what to say about each, and which argument was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hexloop.app.arguments.problems import Problem, RefusalError, problem

OF_SEQ2SEQ = frozenset(
    {
        "generation_config",
        "generation_max_length",
        "generation_num_beams",
        "predict_with_generate",
        "sortish_sampler",
    }
)
"""What the arguments of sequence-to-sequence training have besides."""


def unknown_argument(name: str, value: object, known: Iterable[str]) -> Problem:
    """The sentence about an argument that is none of `known`."""
    return problem({name: value}, _refusal_of(name, known))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name in `known` that `name` is probably a slip of."""
    return next(iter(difflib.get_close_matches(name.replace("-", "_"), list(known), n=1, cutoff=0.7)), None)


def _refusal_of(name: str, known: Iterable[str]) -> RefusalError:
    if name in OF_SEQ2SEQ:
        return RefusalError("only sequence-to-sequence training has this argument", "use Seq2SeqTrainingArguments")
    meant = nearest(name, known)
    if meant is None:
        return RefusalError("there is no argument of that name", "leave it out")
    return RefusalError("there is no argument of that name", f"did you mean {meant}?")
