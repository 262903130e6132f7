"""What a Trainer collects for a run, an evaluation or a save, as frozen values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from attrs import define, fields, frozen

from hexloop.adapters.evaluator.torch.evaluator import Modes
from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks import CallbackHandler, EventDispatcher, TrainerControl, TrainerState
from hexloop.app.wiring.adapters import Adapters
from hexloop.domain.requests import Requests
from hexloop.domain.run import Run

Method = TypeVar("Method", bound=Callable[..., Any])


def standard(method: Method) -> Method:
    """Mark a method as the standard version of a hook; a run skips the hook unless it is overridden.

    The mark is the method itself, because functools.wraps copies marks to the override that it describes.
    """
    method.__is_standard__ = method  # type: ignore[attr-defined]
    return method


def is_overridden(instance: object, name: str) -> bool:
    """Return whether the method `name` is overridden by a subclass or set on the instance."""
    method = getattr(type(instance), name)
    return name in vars(instance) or getattr(method, "__is_standard__", None) is not method


@frozen
class Hook:
    """An overridable method: the user's or the standard one."""

    method: Callable[..., Any]
    overridden: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        return self.method(*args, **kwargs)


@frozen
class Hooks:
    """The overridable methods of a Trainer, each bound. Private methods are listed without their underscore."""

    training_step: Hook
    compute_loss: Hook
    compute_loss_context_manager: Hook
    autocast_smart_context_manager: Hook
    prepare_inputs: Hook
    get_batch_samples: Hook
    floating_point_ops: Hook
    get_optimizer_cls_and_kwargs: Hook
    get_train_dataloader: Hook
    get_eval_dataloader: Hook
    get_test_dataloader: Hook
    evaluate: Hook
    evaluation_in_training: Hook
    evaluation_loop: Hook
    prediction_step: Hook
    log: Hook
    save_model: Hook
    save: Hook
    save_checkpoint: Hook
    load_best_model: Hook
    maybe_log_save_evaluate: Hook
    place_model: Hook
    new_run_name: Hook
    get_num_trainable_parameters: Hook

    @classmethod
    def of(cls, instance: object) -> Hooks:
        """Look up each method of `instance`, and whether it is overridden."""
        names = {each.name: f"_{each.name}" if each.name in PRIVATE_HOOKS else each.name for each in fields(cls)}
        return cls(
            **{field: Hook(getattr(instance, name), is_overridden(instance, name)) for field, name in names.items()}
        )

    @property
    def writes_model(self) -> bool:
        """Whether the user writes the model's files, in `save_model`, `_save` or `_save_checkpoint`."""
        return self.save_model.overridden or self.save.overridden or self.save_checkpoint.overridden


PRIVATE_HOOKS = frozenset({"prepare_inputs", "save", "save_checkpoint", "load_best_model", "maybe_log_save_evaluate"})
"""The hooks whose method starts with an underscore, as in transformers."""


@define
class PreparationTime:
    """Seconds that the first evaluation outside of a run took to prepare the model; None until there was one."""

    seconds: float | None = None


@frozen
class TrainerParts:
    """What a Trainer holds at one moment: what the user passed or assigned, and what the last run left.

    Functions of the app take this value, or only the values that they need, instead of the Trainer. It is collected
    when a run, an evaluation or a save starts, because users may assign attributes after construction.

    model_wrapped: the model as the parallelism adapter prepared it; the model itself outside of a run.
    makes_optimizer, makes_scheduler: whether the arguments choose them. own_optimizer: whether the user set none.
    train_batch_size: samples of a micro-batch of this process. run, modes: the run in progress, and the
    modes that its evaluations change; None between runs. backward: called in every step with its loss, instead of the
    engine's backward pass; None if nothing was assigned to `accelerator.backward`.
    """

    args: TrainingArguments
    adapters: Adapters
    hooks: Hooks
    model: Any
    model_wrapped: Any
    optimizer: Any
    lr_scheduler: Any
    makes_optimizer: bool
    makes_scheduler: bool
    own_optimizer: bool
    standard_optimizer: Any
    train_dataset: Any
    eval_dataset: Any
    data_collator: Callable[[list[Any]], Any]
    processing_class: Any
    compute_loss_func: Callable[..., Any] | None
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    label_names: list[str]
    label_smoother: Callable[..., Any] | None
    model_accepts_loss_kwargs: bool
    loss_is_scaled_for_ga: bool | None
    main_input_name: str
    can_return_loss: bool
    train_batch_size: int
    ignore_keys_for_eval: list[str] | None
    callback_handler: CallbackHandler
    dispatcher: EventDispatcher
    state: TrainerState
    control: TrainerControl
    requests: Requests
    preparation: PreparationTime
    run: Run[Any, Any] | None
    modes: Modes | None
    backward: Callable[[Any], None] | None = None

    @property
    def has_own_loss(self) -> bool:
        """Whether something else than the model computes the loss."""
        smoothed = bool(self.args.label_smoothing_factor)
        return self.compute_loss_func is not None or smoothed or self.hooks.compute_loss.overridden

    @property
    def unwrapped_model(self) -> Any:
        """The model as the user passed it, without the wrapper of the engine."""
        return self.adapters.parallelism.unwrap(self.model)
