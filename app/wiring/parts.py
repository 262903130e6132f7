"""What a Trainer collects for a run, an evaluation or a save, as frozen values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from attrs import define, fields, frozen

from hexloop.adapters.batches.torch.passes import KeptLoaders
from hexloop.adapters.evaluator.torch.evaluator import Modes
from hexloop.adapters.trainable.torch.names import unwrapped
from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks import CallbackHandler, EventDispatcher, TrainerControl, TrainerState
from hexloop.app.notices import Notices
from hexloop.app.wiring.adapters import Adapters
from hexloop.app.wiring.publishing import HubPublisher
from hexloop.app.wiring.storage import WorkingFolder
from hexloop.domain.requests import Requests
from hexloop.domain.run import Run

__all__ = ["KeptLoaders"]
"""Adapters' names that the rest of the app gets from here."""

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
    """The overridable methods of a Trainer, each bound. `PRIVATE_HOOKS` names the methods with an underscore."""

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
    prepare_input: Hook
    get_num_items_in_batch: Hook
    clip_grad_norm: Hook
    get_grad_norm: Hook
    get_learning_rate: Hook
    evaluate_in_run: Hook
    load_from_checkpoint: Hook
    load_callback_state: Hook
    load_optimizer_and_scheduler: Hook
    load_scaler: Hook
    load_rng_state: Hook
    save_optimizer_and_scheduler: Hook
    save_scaler: Hook
    save_rng_state: Hook
    init_training_state: Hook
    run_epoch: Hook
    finalize_training: Hook
    determine_best_metric: Hook
    track_num_input_tokens: Hook
    report_to_hp_search: Hook
    finish_current_push: Hook
    push_from_checkpoint: Hook
    wrap_model: Hook
    store_flos: Hook

    @classmethod
    def of(cls, instance: object) -> Hooks:
        """Look up each method of `instance`, and whether it is overridden."""
        names = {each.name: PRIVATE_HOOKS.get(each.name, each.name) for each in fields(cls)}
        return cls(
            **{field: Hook(getattr(instance, name), is_overridden(instance, name)) for field, name in names.items()}
        )

    @property
    def writes_model(self) -> bool:
        """Whether the user writes files of a checkpoint, in `save_model`, `_save`, `_save_checkpoint` and so on."""
        writing = self.save_model, self.save, self.save_checkpoint, *self.saving_state
        return any(hook.overridden for hook in writing)

    @property
    def follows_saves(self) -> bool:
        """Whether a method of the user's continues after the saves within it, and may look for the checkpoint."""
        return self.run_epoch.overridden or self.maybe_log_save_evaluate.overridden

    @property
    def saving_state(self) -> tuple[Hook, ...]:
        """The methods that write the state of a run beside the model, in the order in which they are called."""
        return self.save_optimizer_and_scheduler, self.save_scaler, self.save_rng_state

    @property
    def prepares_inputs(self) -> bool:
        """Whether the user prepares the inputs of the model."""
        return self.prepare_inputs.overridden or self.prepare_input.overridden

    @property
    def provides_windows(self) -> bool:
        """Whether the user provides or counts the micro-batches of an optimizer step."""
        return self.get_batch_samples.overridden or self.get_num_items_in_batch.overridden


PRIVATE_HOOKS = {
    "prepare_inputs": "_prepare_inputs",
    "prepare_input": "_prepare_input",
    "get_num_items_in_batch": "_get_num_items_in_batch",
    "clip_grad_norm": "_clip_grad_norm",
    "get_grad_norm": "_get_grad_norm",
    "get_learning_rate": "_get_learning_rate",
    "evaluate_in_run": "_evaluate",
    "save": "_save",
    "save_checkpoint": "_save_checkpoint",
    "save_optimizer_and_scheduler": "_save_optimizer_and_scheduler",
    "save_scaler": "_save_scaler",
    "save_rng_state": "_save_rng_state",
    "load_best_model": "_load_best_model",
    "load_from_checkpoint": "_load_from_checkpoint",
    "load_callback_state": "_load_callback_state",
    "load_optimizer_and_scheduler": "_load_optimizer_and_scheduler",
    "load_scaler": "_load_scaler",
    "load_rng_state": "_load_rng_state",
    "maybe_log_save_evaluate": "_maybe_log_save_evaluate",
    "init_training_state": "_init_training_state",
    "run_epoch": "_run_epoch",
    "finalize_training": "_finalize_training",
    "determine_best_metric": "_determine_best_metric",
    "track_num_input_tokens": "_track_num_input_tokens",
    "report_to_hp_search": "_report_to_hp_search",
    "finish_current_push": "_finish_current_push",
    "push_from_checkpoint": "_push_from_checkpoint",
    "wrap_model": "_wrap_model",
}
"""The hooks whose methods start with an underscore, as in transformers."""


@define
class PreparationTime:
    """Seconds that the first evaluation outside of a run took to prepare the model; None until there was one."""

    seconds: float | None = None


@frozen
class TrainerParts:
    """What a Trainer holds at one moment: what the user passed or assigned, and what the last run left.

    Functions of the app take this value, or only the values that they need, instead of the Trainer. It is collected
    when a run, an evaluation or a save starts, because users may assign attributes after construction.

    started_in: the working folder in which the Trainer was made, from which the paths of `args` are resolved.
    model_wrapped: the model as the parallelism adapter prepared it; the model itself outside of a run.
    makes_optimizer, makes_scheduler: whether the arguments choose them. own_optimizer: whether the user set none.
    standard_optimizer, standard_scheduler: what the standard methods made, whether or not it is used.
    kept_loaders: the evaluation loaders whose workers persist. gathers_all_rows: whether evaluation
    with `reproduce` keeps the rows that fill up the batches of processes.
    signature_columns: the columns of the data that are kept; None for those that forward takes.
    notices: how what transformers does with a warning is handled.
    train_batch_size: samples of a micro-batch of this process. trial: of a hyperparameter search. run, modes: the run
    in progress, and the modes that its evaluations change; None between runs. hub_model_id: the repository that was
    assigned or chosen. publisher: publishes on the hub. backward: called in every step with its
    loss, instead of the engine's backward pass; None if nothing was assigned to `accelerator.backward`.
    """

    args: TrainingArguments
    started_in: WorkingFolder
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
    standard_scheduler: Any
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
    signature_columns: list[str] | None
    can_return_loss: bool
    train_batch_size: int
    ignore_keys_for_eval: list[str] | None
    callback_handler: CallbackHandler
    dispatcher: EventDispatcher
    state: TrainerState
    control: TrainerControl
    requests: Requests
    preparation: PreparationTime
    kept_loaders: KeptLoaders
    gathers_all_rows: bool
    trial: Any
    run: Run[Any, Any] | None
    modes: Modes | None
    hub_model_id: str | None
    publisher: HubPublisher
    notices: Notices
    backward: Callable[[Any], None] | None = None

    @property
    def folder(self) -> str:
        """The output folder: an absolute path, or a URL."""
        return self.started_in.locate(str(self.args.output_dir))

    @property
    def has_own_loss(self) -> bool:
        """Whether something else than the model computes the loss."""
        smoothed = bool(self.args.label_smoothing_factor)
        return self.compute_loss_func is not None or smoothed or self.hooks.compute_loss.overridden

    @property
    def unwrapped_model(self) -> Any:
        """The model as the user wrote it, without the wrapper of the engine and those of the user's own."""
        return unwrapped(self.adapters.parallelism.unwrap(self.model))
