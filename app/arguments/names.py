"""Names that are no argument: what to say about each, and which argument was probably meant."""

from __future__ import annotations

from collections.abc import Iterable

from hexloop.domain.wording import Problem, RefusalError, did_you_mean, problem

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


def _refusal_of(name: str, known: Iterable[str]) -> RefusalError:
    if name in OF_SEQ2SEQ:
        return RefusalError("only sequence-to-sequence training has this argument", "use Seq2SeqTrainingArguments")
    return RefusalError("there is no argument of that name", did_you_mean(name, known, "leave it out", similarity=0.7))
