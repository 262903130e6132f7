"""The Trainer of models that generate sequences from sequences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Unpack

from torch import Tensor, no_grad
from torch.nn.functional import pad

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.sequence_to_sequence import Seq2SeqTrainingArguments
from hexloop.app.assembly.adapters import Injected
from hexloop.app.assembly.torch.losses import loss_of_generation
from hexloop.app.hooks import is_overridden, standard
from hexloop.app.rules import rules_of
from hexloop.app.run.generated_samples import NAME, GeneratedSamples
from hexloop.app.trainer.trainer import ModelT, Trainer
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import PredictionOutput
from hexloop.domain.run import Evaluation

LABELS = "labels"
"""The input with the target sequences."""

DEFAULT_LENGTH = 20
"""The maximum length in tokens that transformers uses by default."""


class Seq2SeqTrainer(Trainer[ModelT]):
    """A Trainer that evaluates and predicts generated sequences, if `predict_with_generate` is set.

    The constructor is `Trainer`'s; `args` are `Seq2SeqTrainingArguments`. A `generation_config` among them replaces the
    model's own. Sequences that are compared or kept are padded to the length of the model's generation config.

    Args:
        model: the model to train, one of transformers with `generate`.
        args: a `Seq2SeqTrainingArguments`, or transformers'.
        data_collator: as in `Trainer`.
        train_dataset: as in `Trainer`.
        eval_dataset: as in `Trainer`.
        processing_class: as in `Trainer`.
        model_init: as in `Trainer`.
        compute_loss_func: as in `Trainer`.
        compute_metrics: as in `Trainer`; the predictions are the generated tokens.
        callbacks: as in `Trainer`.
        optimizers: as in `Trainer`.
        preprocess_logits_for_metrics: as in `Trainer`.
        **injected: adapters, as in `Trainer`.

    Raises:
        ConfigurationError: with every problem that can be known without data.

    Examples:
        >>> from transformers import T5Config, T5ForConditionalGeneration
        >>> from hexloop import Seq2SeqTrainer, Seq2SeqTrainingArguments
        >>> sizes = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
        >>> model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))
        >>> rows = [{"input_ids": [5, 6, 1], "labels": [6, 5, 1]}, {"input_ids": [7, 8, 1], "labels": [8, 7, 1]}]
        >>> arguments = Seq2SeqTrainingArguments(
        ...     "runs/reversed", max_steps=2, predict_with_generate=True, generation_max_length=20
        ... )
        >>> trainer = Seq2SeqTrainer(model, arguments, train_dataset=rows, loggers=[])
        >>> trainer.train().global_step
        2
        >>> trainer.predict(rows).predictions.shape  # generated tokens, padded
        (2, 20)
    """

    arguments_class: ClassVar[type[Seq2SeqTrainingArguments]] = Seq2SeqTrainingArguments
    _samples: GeneratedSamples | None = None
    args: Seq2SeqTrainingArguments

    def __init__(
        self,
        model: ModelT | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., ModelT] | None = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        *,
        optimizer_cls_and_kwargs: tuple[type[Any], dict[str, Any]] | None = None,
        tokenizer: Any = None,
        **injected: Unpack[Injected],
    ) -> None:
        if isinstance(args, TrainingArguments) and not isinstance(args, Seq2SeqTrainingArguments):
            raise ConfigurationError(
                f"Seq2SeqTrainer needs Seq2SeqTrainingArguments, but args is a {type(args).__name__}; pass "
                "Seq2SeqTrainingArguments, or use Trainer."
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
            optimizer_cls_and_kwargs,
            preprocess_logits_for_metrics,
            tokenizer=tokenizer,
            **injected,
        )
        self._gen_kwargs = _with_defaults(self.args, {})
        if self.model_init is None:
            self._configure_generation(self.model)
        if self.args.predict_with_generate and not hasattr(self.model, "generate"):
            raise ConfigurationError(
                f"predict_with_generate=True needs a model with a method generate, which {type(self.model).__name__} "
                "does not have; add the method, or set predict_with_generate=False."
            )

    @staticmethod
    def load_generation_config(gen_config_arg: Any) -> Any:
        """Return a `GenerationConfig` of transformers: a copy of the argument, or the one of a model's name or a path.

        A path is that of a folder with generation_config.json, or of such a file.

        Args:
            gen_config_arg: a config, the name of a model, or a path.

        Raises:
            ConfigurationError: if the config is inconsistent, and could not be saved with the model.
        """
        from transformers import GenerationConfig

        if isinstance(gen_config_arg, GenerationConfig):
            config = deepcopy(gen_config_arg)
        elif Path(gen_config_arg).is_file():
            config = GenerationConfig.from_pretrained(Path(gen_config_arg).parent, Path(gen_config_arg).name)
        else:
            config = GenerationConfig.from_pretrained(gen_config_arg)
        try:
            config.validate(strict=True)
        except ValueError as error:
            raise ConfigurationError(
                f"The generation_config is inconsistent, and could not be saved: {error} Fix its options."
            ) from error
        return config

    def call_model_init(self, trial: Any = None) -> Any:
        """Return a new model from `model_init`, with the generation config of the arguments."""
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
        """Evaluate like `Trainer.evaluate`, with generation if `predict_with_generate` is set.

        Args:
            eval_dataset: a data set, a dictionary of several, or the name of one of several; by default the Trainer's.
            ignore_keys: keys of the model's outputs that are left out of the predictions.
            metric_key_prefix: the prefix of the names of metrics.
            **gen_kwargs: keywords of `generate`; the arguments provide a missing `max_length` or `num_beams`.
        """
        if gen_kwargs or not self._asks_for_each:  # each of several data sets uses the keywords of the whole call
            self._gen_kwargs = _with_defaults(self.args, gen_kwargs)
        self.gather_function = self.accelerator.gather
        try:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        finally:
            self.gather_function = None

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """Predict like `Trainer.predict`, gen_kwargs as in `evaluate`. Generated tokens: (samples, tokens).

        Args:
            test_dataset: the data set to predict.
            ignore_keys: keys of the model's outputs that are left out of the predictions.
            metric_key_prefix: the prefix of the names of metrics.
            **gen_kwargs: keywords of `generate`, as in `evaluate`.
        """
        self._gen_kwargs = _with_defaults(self.args, gen_kwargs)
        self.gather_function = self.accelerator.gather
        try:
            return super().predict(test_dataset, ignore_keys, metric_key_prefix)
        finally:
            self.gather_function = None

    @property
    def _generating(self) -> Any:
        """The model, which has `generate` and a `generation_config` if `predict_with_generate` is set."""
        return self.model

    def evaluation_in_training(self) -> Evaluation:
        """Return the evaluation of a run, which generates as the arguments specify."""
        self._gen_kwargs = _with_defaults(self.args, {})
        changes_config = self.args.predict_with_generate and not rules_of(self.args).generation_config_stays
        if changes_config and _has_evaluated(self.state.log_history):
            _state_defaults(self._generating.generation_config)  # as the evaluation before a resume did
        if not is_overridden(self, "evaluate"):
            self.gather_function = self.accelerator.gather
        self._samples = self._wanted_samples()
        try:
            metrics = yield from super().evaluation_in_training()
            self._log_samples()
            return metrics
        finally:
            self.gather_function = self._samples = None

    def _wanted_samples(self) -> GeneratedSamples | None:
        """Return what collects samples of an evaluation; None on other processes, and where nothing can decode them."""
        wanted = self.args.predict_with_generate and self.args.generation_samples > 0
        decodes = wanted and self.is_world_process_zero() and hasattr(self.processing_class, "batch_decode")
        return GeneratedSamples(self.args.generation_samples) if decodes else None

    def _log_samples(self) -> None:
        """Log the samples that were collected. A tokenizer that fails is reported, and stops nothing."""
        if self._samples is None:
            return
        try:
            rows = self._samples.table(self.processing_class, getattr(self.processing_class, "pad_token_id", None))
        except Exception as error:
            text = "The generated samples cannot be decoded (%s: %s); they are not logged."
            logging.getLogger("hexloop.loggers").warning(text, type(error).__name__, error)
            return
        if rows:
            self.log_media(NAME, rows, "table")

    def prediction_step(
        self,
        model: Any,
        inputs: Any,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Tensor | None, Any, Any]:
        """Return the loss, the generated tokens and the labels of a batch, or `Trainer`'s without generation.

        Generated tokens and labels, (rows, tokens), are padded to one length.

        Args:
            model: the model that predicts.
            inputs: the batch.
            prediction_loss_only: return only the loss.
            ignore_keys: keys of the model's outputs that are left out of the predictions.
            **gen_kwargs: keywords of `generate`; by default those of the current `evaluate` or `predict`.
        """
        if not self.args.predict_with_generate or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        raw = inputs
        if is_overridden(self, "_prepare_inputs") or is_overridden(self, "_prepare_input"):
            inputs = self._prepare_inputs(dict(inputs))
        labels = inputs.get(LABELS)
        given, optional = gen_kwargs or self._gen_kwargs, ("max_length", "num_beams")
        keywords = {name: value for name, value in given.items() if value is not None or name not in optional}
        generate = self.adapters.precision.wrap(self._generating.generate)
        tokens = generate(**_without_labels(inputs), **keywords)
        if not rules_of(self.args).generation_config_stays:
            _state_defaults(self._generating.generation_config)
        generated = self._padded(tokens)
        if self._samples is not None:
            self._samples.see(inputs, tokens, labels)
        loss = None
        if labels is not None and rules_of(self.args).own_losses:
            loss = super().prediction_step(model, raw, True)[0]
        elif labels is not None:
            loss = self._transformers_loss(model, inputs)
        if self.args.prediction_loss_only:
            return loss, None, None
        return loss, generated, None if labels is None else self._padded(labels)

    def _transformers_loss(self, model: Any, inputs: Any) -> Tensor:
        with no_grad():
            compute = loss_of_generation(self._collect_parts())
            loss: Tensor = self.adapters.precision.wrap(compute)(model, inputs)
        return loss.detach().mean()

    def _padded(self, tokens: Tensor) -> Tensor:
        """Return `tokens`, (rows, length), padded on the right to the length of the model's generation config.

        That is its max_length, or for longer tokens one more than its max_new_tokens; longer ones are not changed.
        """
        config = getattr(self.model, "generation_config", None)
        length, longest = tokens.shape[-1], getattr(config, "max_length", None) or DEFAULT_LENGTH
        if length >= longest:
            longest = max(length, (getattr(config, "max_new_tokens", None) or 0) + 1)
        return tokens if length == longest else self._pad_tensors_to_max_len(tokens, longest)

    def _pad_tensors_to_max_len(self, tensor: Tensor, max_length: int) -> Tensor:
        """Return `tensor`, (rows, length), padded on the right to `max_length` with the padding token.

        Raises ConfigurationError if neither the tokenizer nor the model's config has one.
        """
        missing = max_length - tensor.shape[-1]
        return pad(tensor, (0, missing), value=_padding_token(self.processing_class, self.model))


def _with_defaults(args: Seq2SeqTrainingArguments, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords of `generate`, with the length and the beams of the arguments if they are missing."""
    completed = dict(keywords)
    no_length = completed.get("max_length") is None and completed.get("max_new_tokens") is None
    if no_length and args.generation_max_length is not None:
        completed["max_length"] = args.generation_max_length
    if completed.get("num_beams") is None and args.generation_num_beams is not None:
        completed["num_beams"] = args.generation_num_beams
    return completed


def _has_evaluated(history: Sequence[Mapping[str, Any]]) -> bool:
    return any(name.startswith("eval_") for entry in history for name in entry)


def _state_defaults(config: Any) -> None:
    """Set the options that a generation config leaves open to the defaults, as transformers does after each batch.

    A `max_length` that is set counts the tokens with which generation starts, the default one does not: after the first
    batch, sequences are shorter by one token.
    """
    config._from_model_config = False
    if hasattr(config, "_get_default_generation_params"):  # earlier releases set all options when a config is made
        config.update(**config._get_default_generation_params(), defaults_only=True)


def _without_labels(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs without the labels, and without what a collator made from them, as that holds the answer."""
    left_out = {LABELS}
    labels, decoder_inputs = inputs.get(LABELS), inputs.get("decoder_input_ids")
    if labels is not None and decoder_inputs is not None and labels.shape == decoder_inputs.shape:
        left_out |= {"decoder_input_ids", "decoder_attention_mask"}
    return {name: value for name, value in inputs.items() if name not in left_out}


def _padding_token(processing_class: Any, model: Any) -> int:
    """Return the tokenizer's padding or end token, or without a tokenizer the padding token of the model's config."""
    token: int | None
    if hasattr(processing_class, "pad_token_id"):
        token = processing_class.pad_token_id
        token = processing_class.eos_token_id if token is None else token
    else:
        token = getattr(getattr(model, "config", None), "pad_token_id", None)
    if token is None:
        raise ConfigurationError(
            "predict_with_generate=True needs a padding token for shorter sequences; set pad_token_id in the "
            "model's config, or pass a tokenizer as processing_class."
        )
    return token
