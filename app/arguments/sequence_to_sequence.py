"""`Seq2SeqTrainingArguments`: the arguments of a run whose model generates sequences."""

from __future__ import annotations

import warnings
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.conversion import at_least
from hexloop.app.arguments.declaration import argument, arguments_class
from hexloop.domain.wording import RefusalError


def generation_configuration(value: object) -> None:
    """Check that a value is a name, a path, or an object such as transformers' `GenerationConfig`."""
    if not isinstance(value, str) and not hasattr(value, "to_dict"):
        raise RefusalError(
            "it takes a model's name, the path of a folder or file, or a GenerationConfig", "give one of them"
        )


@arguments_class
class Seq2SeqTrainingArguments(TrainingArguments):
    """Generation.

    The arguments of `TrainingArguments`, and how evaluation and prediction generate sequences. Derive from it as from
    `TrainingArguments`.

    Raises:
        ConfigurationError: as `TrainingArguments` does.
    """

    sortish_sampler: bool = argument(
        default=False, help="sort samples by length within windows; the same as train_sampling_strategy=group_by_length"
    )
    predict_with_generate: bool = argument(
        default=False, help="in evaluation and prediction, return generated sequences instead of logits"
    )
    generation_max_length: int | None = argument(
        default=None, check=at_least(1), help="maximum length of generated sequences in tokens; the model's if unset"
    )
    generation_num_beams: int | None = argument(
        default=None, check=at_least(1), help="number of beams in beam search; the model's if unset"
    )
    generation_config: str | Any | None = argument(
        default=None,
        check=generation_configuration,
        help="generation config that replaces the model's own: the name of a model, or the path of a folder or file; "
        "from Python also a GenerationConfig",
    )

    generation_samples: int = argument(
        default=8,
        check=at_least(0),
        help="with predict_with_generate, samples of each evaluation of a run that are logged as a table of text; 0: none",
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments as `TrainingArguments.to_dict` does, with a generation config as a dictionary."""
        described = super().to_dict()
        if not isinstance(self.generation_config, str | None):
            described["generation_config"] = self.generation_config.to_dict()
        return described

    def _derive(self) -> None:
        super()._derive()
        if self.sortish_sampler and self.train_sampling_strategy == "random":
            warnings.warn(
                "sortish_sampler is deprecated; train_sampling_strategy='group_by_length' does the same, and has been "
                "set.",
                FutureWarning,
                stacklevel=2,
            )
            self.train_sampling_strategy = "group_by_length"
