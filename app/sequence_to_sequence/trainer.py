"""From a held-out batch to what the model generates from it, in tensors of the length that is generated at most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from torch.nn.functional import pad

from hexloop.app.arguments import TrainingArguments
from hexloop.app.sequence_to_sequence import trainer as generation
from hexloop.app.sequence_to_sequence.arguments import Seq2SeqTrainingArguments
from hexloop.app.trainer import Trainer
from hexloop.app.values import PredictionOutput
from hexloop.app.wiring.parts import standard
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.run import Evaluation

LABELS = "labels"
"""The input with the sequences to be generated."""

MADE_OF_LABELS = ("decoder_input_ids", "decoder_attention_mask")
"""Inputs that a collator may have made of the labels; to be given them is to be given the answer."""

DEFAULT_LENGTH = 20
"""Tokens that transformers generates at most where nobody says how many."""


def load_generation_config(source: Any) -> Any:
    """A `GenerationConfig` of transformers: a copy of the one given, or the one that a name or path leads to.

    A path is that of a folder that holds generation_config.json, or of such a file; anything else is the name of a
    model on the Hub. Raises ConfigurationError where it holds what contradicts itself, which could not be saved.
    """
    from transformers import GenerationConfig

    if isinstance(source, GenerationConfig):
        config = deepcopy(source)
    elif Path(source).is_file():
        config = GenerationConfig.from_pretrained(Path(source).parent, Path(source).name)
    else:
        config = GenerationConfig.from_pretrained(source)
    try:
        config.validate(strict=True)
    except ValueError as error:
        raise ConfigurationError(
            [f"You chose a generation_config that contradicts itself, and could not be saved: {error} Mend it."]
        ) from error
    return config


def refuse_generation(trainer: Seq2SeqTrainer) -> None:
    """Raise ConfigurationError where the arguments ask a model to generate that cannot."""
    args, model = trainer.args, trainer.model
    if args.predict_with_generate and not hasattr(model, "generate"):
        raise ConfigurationError(
            [
                f"You chose predict_with_generate=True, but {type(model).__name__} has no method generate; give it "
                "one, or set predict_with_generate=False."
            ]
        )


def with_defaults(args: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The generation keywords `chosen`, and the arguments' where they leave the length or the beams open."""
    keywords = dict(chosen)
    open_length = keywords.get("max_length") is None and keywords.get("max_new_tokens") is None
    if open_length and args.generation_max_length is not None:
        keywords["max_length"] = args.generation_max_length
    if keywords.get("num_beams") is None and args.generation_num_beams is not None:
        keywords["num_beams"] = args.generation_num_beams
    return keywords


def generate(trainer: Seq2SeqTrainer, inputs: Mapping[str, Any], keywords: Mapping[str, Any]) -> Tensor:
    """What the model generates from a batch, (rows, tokens), padded to the length that is generated at most."""
    undecided = ("max_length", "num_beams")
    keywords = {name: value for name, value in keywords.items() if value is not None or name not in undecided}
    generated = trainer.adapters.precision.wrap(trainer.model.generate)(**_to_generate_from(inputs), **keywords)
    return padded(trainer, generated)


def _to_generate_from(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs without the labels, and without what was made of them."""
    left_out = {LABELS}
    labels, shown = inputs.get(LABELS), inputs.get("decoder_input_ids")
    if labels is not None and shown is not None and labels.shape == shown.shape:
        left_out |= set(MADE_OF_LABELS)
    return {name: value for name, value in inputs.items() if name not in left_out}


def padded(trainer: Seq2SeqTrainer, tokens: Tensor) -> Tensor:
    """`tokens`, (rows, length), filled up on the right to the length of the model's generation config.

    That is its max_length, or for longer tokens one more than its max_new_tokens; still longer ones stay as they are.
    """
    config = getattr(trainer.model, "generation_config", None)
    length, longest = tokens.shape[-1], getattr(config, "max_length", None) or DEFAULT_LENGTH
    if length >= longest:
        longest = max(length, (getattr(config, "max_new_tokens", None) or 0) + 1)
    return tokens if length == longest else pad(tokens, (0, longest - length), value=_padding_token(trainer))


def _padding_token(trainer: Seq2SeqTrainer) -> int:
    """The tokenizer's padding token, else its end token, or without a tokenizer that of the model's config."""
    token: int | None
    if hasattr(trainer.processing_class, "pad_token_id"):
        token = trainer.processing_class.pad_token_id
        token = trainer.processing_class.eos_token_id if token is None else token
    else:
        token = getattr(getattr(trainer.model, "config", None), "pad_token_id", None)
    if token is None:
        raise ConfigurationError(
            [
                "You chose predict_with_generate=True, but nothing says with which token shorter sequences are filled "
                "up; set pad_token_id in the model's config, or pass a tokenizer as processing_class."
            ]
        )
    return token


class Seq2SeqTrainer(Trainer):
    """A Trainer that evaluates and predicts by what its model generates, where `predict_with_generate` is set.

    The constructor is `Trainer`'s; `args` are `Seq2SeqTrainingArguments`. A `generation_config` among them takes the
    place of the model's own. Every sequence that is compared or kept is filled up with the padding token to the length
    of the model's generation config.

    Raises ConfigurationError with every problem that can be known without data.
    """

    arguments_class: ClassVar[type[Seq2SeqTrainingArguments]] = Seq2SeqTrainingArguments
    args: Seq2SeqTrainingArguments

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., Any] | None = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        **injected: Any,
    ) -> None:
        if isinstance(args, TrainingArguments) and not isinstance(args, Seq2SeqTrainingArguments):
            raise ConfigurationError(
                [
                    f"A Seq2SeqTrainer reads how to generate from Seq2SeqTrainingArguments, but was given "
                    f"{type(args).__name__}; make those, or use Trainer."
                ]
            )
        super().__init__(
            model,
            args,
            data_collator,
            train_dataset,
            eval_dataset,
            processing_class,
            model_init,
            compute_loss_func,
            compute_metrics,
            callbacks,
            optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            **injected,
        )
        self._gen_kwargs = generation.with_defaults(self.args, {})
        if self.model_init is None:
            self._configure_generation(self.model)
        generation.refuse_generation(self)

    @staticmethod
    def load_generation_config(gen_config_arg: Any) -> Any:
        """A `GenerationConfig` of transformers: a copy of the one given, or the one of a model's name or a path.

        Raises ConfigurationError where it contradicts itself, and could not be saved with the model.
        """
        return generation.load_generation_config(gen_config_arg)

    def call_model_init(self, trial: Any = None) -> Any:
        """A fresh model from `model_init`, which generates as the arguments say."""
        model = super().call_model_init(trial)
        self._configure_generation(model)
        return model

    def _configure_generation(self, model: Any) -> None:
        if self.args.generation_config is not None:
            model.generation_config = self.load_generation_config(self.args.generation_config)

    @standard
    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """As `Trainer.evaluate`. gen_kwargs: keywords of the model's `generate`; the arguments' count where they leave
        `max_length` (or `max_new_tokens`) or `num_beams` open.
        """
        if gen_kwargs or not self._asks_for_each:  # each of several is generated as all of them were asked for
            self._gen_kwargs = generation.with_defaults(self.args, gen_kwargs)
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """As `Trainer.predict`; gen_kwargs as of `evaluate`. What is generated has the shape (samples, tokens)."""
        self._gen_kwargs = generation.with_defaults(self.args, gen_kwargs)
        return super().predict(test_dataset, ignore_keys, metric_key_prefix)

    def evaluation_in_training(self) -> Evaluation:
        """As `Trainer.evaluation_in_training`; generates as the arguments say, whatever a call before was given."""
        self._gen_kwargs = generation.with_defaults(self.args, {})
        return super().evaluation_in_training()

    def prediction_step(
        self,
        model: Any,
        inputs: Any,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Tensor | None, Any, Any]:
        """The loss, what the model generates, and the labels of a batch; without `predict_with_generate` as there.

        gen_kwargs: keywords of `generate`; where none are given, those of the `evaluate` or `predict` under way.
        Generated tokens and labels, (rows, tokens), are filled up with the padding token to one length.
        """
        if not self.args.predict_with_generate or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        labels = inputs.get(generation.LABELS)
        generated = generation.generate(self, inputs, gen_kwargs or self._gen_kwargs)
        loss = None if labels is None else super().prediction_step(model, inputs, True)[0]
        if self.args.prediction_loss_only:
            return loss, None, None
        return loss, generated, None if labels is None else generation.padded(self, labels)
