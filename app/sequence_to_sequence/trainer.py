"""The Trainer of models that turn one sequence into another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import Tensor

from hexloop.adapters.evaluator.torch.outputs import PredictionOutput
from hexloop.app.arguments import TrainingArguments
from hexloop.app.sequence_to_sequence import generation
from hexloop.app.sequence_to_sequence.arguments import Seq2SeqTrainingArguments
from hexloop.app.trainer import Trainer
from hexloop.app.wiring.parts import standard
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.run import Evaluation


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
