"""`Seq2SeqTrainingArguments`: what a run can be told beside `TrainingArguments` where its model generates."""

from __future__ import annotations

import warnings
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.checks import at_least
from hexloop.app.arguments.declare import argument, arguments_class
from hexloop.domain.wording import RefusalError


def generation_configuration(value: object) -> None:
    """A name, a path, or what says how to generate, such as transformers' `GenerationConfig`."""
    if not isinstance(value, str) and not hasattr(value, "to_dict"):
        raise RefusalError(
            "it takes a model's name, the path of a folder or file, or a GenerationConfig", "give one of them"
        )


@arguments_class
class Seq2SeqTrainingArguments(TrainingArguments):
    """Generation.

    Every argument of `TrainingArguments`, and how evaluation and prediction generate. Derive from it as from that one.

    Raises:
        ConfigurationError: as `TrainingArguments` does.
    """

    sortish_sampler: bool = argument(
        default=False, help="sort samples by length within windows; the same as train_sampling_strategy group_by_length"
    )
    predict_with_generate: bool = argument(
        default=False, help="in evaluation and prediction, predict what the model generates instead of its logits"
    )
    generation_max_length: int | None = argument(
        default=None,
        checks=(at_least(1),),
        help="tokens that a generated sequence has at most; what the model's generation config says if not given",
    )
    generation_num_beams: int | None = argument(
        default=None,
        checks=(at_least(1),),
        help="beams that generation searches with; what the model's generation config says if not given",
    )
    generation_config: str | Any | None = argument(
        default=None,
        checks=(generation_configuration,),
        help="how to generate: the name of a model, or the path of a folder or file, whose generation config takes the "
        "place of the model's own; from Python also a GenerationConfig",
    )

    def to_dict(self) -> dict[str, Any]:
        """As `TrainingArguments.to_dict`, a generation config as a dictionary of what it says."""
        described = super().to_dict()
        if not isinstance(self.generation_config, str | None):
            described["generation_config"] = self.generation_config.to_dict()
        return described

    def _settle(self) -> None:
        super()._settle()
        if self.sortish_sampler and self.train_sampling_strategy == "random":
            warnings.warn(
                "sortish_sampler is the older name of a way to draw samples; hexloop does the same by "
                "train_sampling_strategy='group_by_length', and has set it.",
                FutureWarning,
                stacklevel=2,
            )
            self.train_sampling_strategy = "group_by_length"
