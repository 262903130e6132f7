"""`SFTConfig`: the arguments of supervised fine-tuning."""

from __future__ import annotations

from typing import Any, ClassVar

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.conversion import at_least, steps_or_ratio
from hexloop.app.arguments.declaration import argument, arguments_class, rule
from hexloop.app.rules import rules_of
from hexloop.domain.wording import RefusalError, did_you_mean

SKIPS = "skip_prepare_dataset"
"""The key of `dataset_kwargs` with which data are passed to the collator as they are."""


LONGEST = 1024
"""The default of `max_length`."""


def _options_of_data(value: Any) -> None:
    """Check the keys of `dataset_kwargs`."""
    for name, chosen in value.items() if isinstance(value, dict) else ():
        if name != SKIPS:
            raise RefusalError(f"it has no key {name!r}", did_you_mean(str(name), [SKIPS], f"its only key is {SKIPS}"))
        if not isinstance(chosen, bool):
            raise RefusalError(f"{SKIPS} takes a truth value", "give true or false")


def _multiple(value: Any) -> Any:
    """Convert trl's "auto", which pads on one accelerator only."""
    return None if value == "auto" else value


@arguments_class
class SFTConfig(TrainingArguments):
    """Fine-tuning.

    The arguments of `TrainingArguments`, and how samples become tokens and which of these count in the loss, with the
    names of trl. Of the defaults, `learning_rate`, `logging_steps` and `max_length` are trl's; the precision and
    `gradient_checkpointing` stay those of `TrainingArguments`. Derive from it as from `TrainingArguments`.

    model_init_kwargs: keywords of `AutoModelForCausalLM.from_pretrained`, for a model that is passed by name. Without a
        `dtype` among them the weights are loaded in float32.
    chat_template_path: a file with a Jinja template, or a folder or the name of a model whose tokenizer has one. Tokens
        that only that tokenizer has are added to the tokenizer and to the model.
    max_length: as in `TrainingArguments`. It is unset with `reproduce`, and if the preparation of data is skipped,
        unless another length than 1024 is given.
    dataset_kwargs: `skip_prepare_dataset=True` passes samples to the collator as they are.
    dataset_num_proc: processes that tokenize data with indices before the Trainer is ready, and keep the tokens in
        `token_cache`. If neither is set, samples are tokenized when they are read, and nothing is written. Streams are
        always tokenized as they are read.
    token_cache: a folder with the tokens of samples, under a digest of the samples, the tokenizer and the options. If
        unset, `hexloop-tokens` in the cache of `datasets`.
    completion_only_loss: whether the tokens of a prompt are left out of the loss. If unset, those of samples that have
        a prompt and a completion are.
    assistant_only_loss: count only what the assistant says in a conversation, as the chat template marks it with
        `{% generation %}`.

    Raises:
        ConfigurationError: as `TrainingArguments` does.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *TrainingArguments._VALID_DICT_FIELDS,
        "model_init_kwargs",
        "dataset_kwargs",
    ]

    learning_rate: float = argument(default=2e-5, check=at_least(0), help="peak learning rate, after warmup")
    logging_steps: float = argument(
        default=10, check=steps_or_ratio, help="optimizer steps between logs; below 1, a ratio of the run"
    )
    max_length: int | None = argument(
        default=LONGEST,
        check=at_least(1),
        help="tokens of a sample at most; longer ones are cut off at their end; with packing, tokens of a row",
    )
    pad_to_multiple_of: int | None = argument(
        default=None, prepare=_multiple, check=at_least(1), help="pad batches to a multiple of that many tokens"
    )
    model_init_kwargs: dict[str, Any] | str | None = argument(
        default=None, help="keywords of from_pretrained, for a model that is passed by name"
    )
    trust_remote_code: bool = argument(
        default=False, help="run code that comes with a model or tokenizer that is loaded by name"
    )
    chat_template_path: str | None = argument(
        default=None, help="file of a chat template, or folder or name of a model whose tokenizer has one"
    )
    dataset_text_field: str = argument(default="text", help="column of the samples that holds a text")
    dataset_kwargs: dict[str, Any] | str | None = argument(
        default=None,
        check=_options_of_data,
        help="skip_prepare_dataset: whether samples go to the collator as they are",
    )
    dataset_num_proc: int | None = argument(
        default=None,
        check=at_least(1),
        help="processes that tokenize the data before training; as they are read if unset",
    )
    token_cache: str | None = argument(
        default=None,
        help="folder in which tokens are kept for later runs; in the cache of datasets if only dataset_num_proc is set",
    )
    eos_token: str | None = argument(
        default=None, help="token that ends a text or completion; that of the tokenizer if unset"
    )
    pad_token: str | None = argument(
        default=None, help="token of padding; that of the tokenizer if unset, else its end token"
    )
    completion_only_loss: bool | None = argument(
        default=None, help="leave prompts out of the loss; where samples have a prompt and a completion if unset"
    )
    assistant_only_loss: bool = argument(
        default=False, help="count only what the assistant says, as the chat template marks it"
    )

    @rule("dataset_kwargs", "completion_only_loss", "assistant_only_loss", "dataset_num_proc", "token_cache")
    def _preparation_that_is_not_skipped(self) -> None:
        if not self.skips_preparation:
            return
        given = ("completion_only_loss", "assistant_only_loss", "dataset_num_proc", "token_cache")
        if unused := [name for name in given if getattr(self, name)]:
            raise RefusalError(
                f"{SKIPS} leaves tokens and labels as the data have them, so {' and '.join(unused)} would do nothing",
                f"leave {'it' if len(unused) == 1 else 'them'} out, or {SKIPS}",
            )

    @property
    def skips_preparation(self) -> bool:
        """Whether samples go to the collator as they are."""
        return isinstance(self.dataset_kwargs, dict) and bool(self.dataset_kwargs.get(SKIPS))

    def _derive(self) -> None:
        super()._derive()
        cuts_nothing = self.skips_preparation or not rules_of(self).own_order
        if cuts_nothing and not (self.packing or self.eval_packing) and self.max_length == LONGEST:
            self.max_length = None
