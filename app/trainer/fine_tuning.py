"""The Trainer of supervised fine-tuning."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, Unpack

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.arguments import from_transformers
from hexloop.app.arguments.fine_tuning import SFTConfig
from hexloop.app.assembly.adapters import Injected
from hexloop.app.assembly.torch.packing import document_collate
from hexloop.app.fine_tuning.data import Preparation
from hexloop.app.fine_tuning.model import Base, adopt_template, adopt_tokens, refuse_untrained_tokens, tokenizer_of
from hexloop.app.fine_tuning.samples import Choices, Tokenization
from hexloop.app.hooks import standard
from hexloop.app.run.checks import Refusals
from hexloop.app.trainer.trainer import ModelT, Trainer
from hexloop.domain.errors import ConfigurationError

OWN_DEFAULTS = ("learning_rate", "logging_steps")
"""Arguments whose defaults in `SFTConfig` are not those of `TrainingArguments`."""

CUTTING = ("bfd",)
"""Packing strategies that cut off what is beyond `max_length`; the others train on it."""


class SFTTrainer(Trainer[ModelT]):
    """A Trainer that fine-tunes a causal language model on texts, prompts with completions, or conversations.

    Samples are mappings: with a text (`dataset_text_field`), with `prompt` and `completion`, with `messages`, or with
    `input_ids`. They become tokens and labels as the `SFTConfig` says, when they are read or before. The constructor
    has the parameters of trl's SFTTrainer:

    Args:
        model: a model of transformers, with or without adapters, or the name or folder of one, which is then loaded.
        args: an `SFTConfig`. Of `TrainingArguments`, the values are taken over.
        data_collator: as in `Trainer`; by default batches are padded or packed as the arguments say.
        train_dataset: the samples to train on.
        eval_dataset: the samples to evaluate, or a dictionary of several data sets.
        processing_class: the tokenizer. If it is None, the one that was saved with the model. It receives the tokens
            and the template of the arguments, and pads with its end token if it has no padding token.
        compute_loss_func: as in `Trainer`.
        compute_metrics: as in `Trainer`.
        callbacks: as in `Trainer`.
        optimizers: as in `Trainer`.
        optimizer_cls_and_kwargs: as in `Trainer`.
        preprocess_logits_for_metrics: as in `Trainer`.
        quantization_config: how the weights of a model that is loaded by name are quantized.
        peft_config: of the adapters that are trained in place of the weights.
        formatting_func: returns the text of a sample.
        tokenizer: the former name of `processing_class`.
        **injected: adapters, as in `Trainer`.

    Raises:
        ConfigurationError: with every problem that can be known without data, or from the first sample.

    Examples:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
        >>> from hexloop import SFTConfig, SFTTrainer
        >>> vocabulary = {"<pad>": 0, "<end>": 1, "one": 2, "two": 3, "three": 4}
        >>> words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")
        >>> sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2))
        >>> rows = [{"text": "one two three"}, {"prompt": "one", "completion": "two"}]
        >>> arguments = SFTConfig("runs/tuned", max_steps=2)
        >>> trainer = SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer, loggers=[])
        >>> trainer.train().global_step
        2
    """

    arguments_class: ClassVar[type[SFTConfig]] = SFTConfig
    args: SFTConfig

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[Any], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        quantization_config: Any = None,
        peft_config: Any = None,
        formatting_func: Callable[[Any], str] | None = None,
        *,
        tokenizer: Any = None,
        **injected: Unpack[Injected],
    ) -> None:
        base = Base(model, peft_config, quantization_config)
        config = _config(args, base)
        if model is None:
            raise ConfigurationError("SFTTrainer needs a model; pass one, or the name or folder of one.")
        if tokenizer is not None:
            processing_class = self.take_tokenizer(tokenizer, processing_class)
        tokenizer = tokenizer_of(base, processing_class, config)
        added: list[str] = []
        with Refusals() as refusals:
            added = adopt_template(tokenizer, config)
            refuse_untrained_tokens(added, peft_config)
        for found in (adopt_tokens(tokenizer, config), base.problems(config)):
            with refusals:
                if problems := list(found):
                    raise ConfigurationError(problems)
        tokenization = Tokenization(tokenizer, _choices(config, formatting_func))
        prepare = Preparation(tokenization, config.dataset_num_proc, config.token_cache)
        self._to_tokens = None if config.skips_preparation else prepare
        with refusals:
            if problems := [] if self._to_tokens is None else prepare.problems(train_dataset, eval_dataset):
                raise ConfigurationError(problems)
        refusals.settle()
        loaded = base.load(config, len(tokenizer), grows=bool(added))
        super().__init__(
            loaded,
            config,
            data_collator or _collator(loaded, tokenizer, config),
            self._tokens_of(train_dataset),
            self._tokens_of(eval_dataset),
            tokenizer if processing_class is None else processing_class,
            compute_loss_func=compute_loss_func,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            **injected,
        )
        if self._to_tokens is not None and prepare.keeps:
            several = config.world_size > 1
            with config.main_process_first(desc="tokenizing") if several else nullcontext():
                prepare.fill(self.train_dataset, self.eval_dataset)

    def _tokens_of(self, dataset: Any) -> Any:
        return dataset if self._to_tokens is None else self._to_tokens(dataset)

    @standard
    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[..., Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        """Return the batches of `dataset`, whose samples become tokens if they are none; see `Trainer`."""
        tokens = self._tokens_of(dataset)
        return super()._get_dataloader(tokens, description, batch_size, sampler_fn, is_training, dataloader_key)


def _config(args: Any, base: Base) -> SFTConfig:
    """Return the arguments as an `SFTConfig`. Raises ConfigurationError if they have more than that takes."""
    if args is None:
        return SFTConfig(f"{base.name.rstrip('/').split('/')[-1] or type(base.model).__name__}-SFT")
    if isinstance(args, SFTConfig):
        return args
    taken = from_transformers(args, SFTConfig)
    own = {field.name: getattr(args, field.name) for field in dataclasses.fields(args) if field.name in OWN_DEFAULTS}
    if isinstance(taken, SFTConfig):  # transformers'
        taken.assign(**own)
        return taken
    if type(args) is not TrainingArguments:
        raise ConfigurationError(
            f"SFTTrainer needs an SFTConfig, but args is a {type(args).__name__}; derive that class from SFTConfig."
        )
    changed = {
        field.name: value
        for field in dataclasses.fields(args)
        if field.init and (value := getattr(args, field.name)) != _default(field)
    }
    made = SFTConfig(**{**changed, **own})
    made.distributed_environment = args.distributed_environment
    return made


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _choices(config: SFTConfig, formatting_func: Callable[[Any], str] | None) -> Choices:
    """Return how samples become tokens. Packing into several pieces needs those beyond `max_length` as well."""
    cuts = not config.packing or config.packing_strategy in CUTTING
    return Choices(
        text_field=config.dataset_text_field,
        completion_only=config.completion_only_loss,
        assistant_only=config.assistant_only_loss,
        longest=config.max_length if cuts else None,
        formatting=formatting_func,
    )


def _collator(model: Any, tokenizer: Any, config: SFTConfig) -> Callable[[list[Any]], Any] | None:
    """Return what pads tokens and labels; None where the arguments about sequences choose it."""
    about_sequences = "packing", "eval_packing", "padding_free", "tokens_per_batch", "max_length", "pad_to_multiple_of"
    if any(getattr(config, name) is not None and getattr(config, name) is not False for name in about_sequences):
        return None
    return document_collate(model, tokenizer, "padded")
