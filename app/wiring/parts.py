"""What a Trainer collects for a run, an evaluation or a save, as frozen values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from attrs import define, frozen

from hexloop.adapters.batches.torch.passes import KeptLoaders
from hexloop.adapters.evaluator.torch.evaluator import Modes
from hexloop.adapters.trainable.torch.names import unwrapped
from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks import CallbackHandler, EventDispatcher, TrainerControl, TrainerState
from hexloop.app.notices import Notices
from hexloop.app.rules import Rules, rules_of
from hexloop.app.wiring.adapters import Adapters
from hexloop.app.wiring.publishing import Publisher
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
    return name in vars(instance) or not is_standard(getattr(type(instance), name))


def is_standard(method: Any) -> bool:
    """Return whether a method is marked as the standard version of a hook."""
    function = getattr(method, "__func__", method)
    return getattr(function, "__is_standard__", None) is function


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
    """The overridable methods of a Trainer, each bound: those that it marks as `standard`.

    A hook is read as an attribute, by the name of its method without the underscore at the front; that of `_evaluate`
    is `evaluate_in_run`.
    """

    _by_name: Mapping[str, Hook]

    @classmethod
    def of(cls, instance: object) -> Hooks:
        """Look up each method of `instance`, and whether it is overridden."""
        return cls(
            {
                name: Hook(getattr(instance, method), is_overridden(instance, method))
                for name, method in _hook_names(type(instance)).items()
            }
        )

    def __getattr__(self, name: str) -> Hook:
        if name.startswith("_") or name not in self._by_name:
            raise AttributeError(f"The Trainer marks no method as the hook {name!r}")
        return self._by_name[name]

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


_HOOK_NAMES: WeakKeyDictionary[type[Any], Mapping[str, str]] = WeakKeyDictionary()


def _hook_names(kind: type[Any]) -> Mapping[str, str]:
    """Return the method of each hook of a class."""
    if kind not in _HOOK_NAMES:
        marked = [
            name
            for each in kind.__mro__
            for name, method in vars(each).items()
            if is_standard(getattr(method, "__func__", method))
        ]
        _HOOK_NAMES[kind] = {"evaluate_in_run" if name == "_evaluate" else name.lstrip("_"): name for name in marked}
    return _HOOK_NAMES[kind]


@define
class PreparationTime:
    """Seconds that the first evaluation outside of a run took to prepare the model; None until there was one."""

    seconds: float | None = None


@frozen
class TrainerParts:
    """What a Trainer holds at one moment: what the user passed or assigned, and what the last run left.

    Functions of the app take this value, or only the values that they need, instead of the Trainer. It is collected
    when a run, an evaluation or a save starts, because users may assign attributes after construction. Each field is an
    attribute of `TrainerAttributes`, where it is described.

    makes_optimizer, makes_scheduler: whether the arguments choose them. own_optimizer: whether the user set none.
    gathers_all_rows: whether evaluation with `reproduce` keeps the rows that fill up the batches of processes.
    train_batch_size: samples of a micro-batch of this process. trial: of a hyperparameter search. run, modes: the run
    in progress, and the modes that its evaluations change; None between runs. backward: called in every step with its
    loss, instead of the engine's backward pass; None if nothing was assigned to `accelerator.backward`.
    """

    hooks: Hooks
    args: TrainingArguments
    adapters: Adapters
    started_in: WorkingFolder
    notices: Notices
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
    can_return_loss: bool
    signature_columns: list[str] | None
    train_batch_size: int
    ignore_keys_for_eval: list[str] | None
    callback_handler: CallbackHandler
    state: TrainerState
    control: TrainerControl
    dispatcher: EventDispatcher
    requests: Requests
    preparation: PreparationTime
    kept_loaders: KeptLoaders
    gathers_all_rows: bool
    trial: Any
    run: Run[Any, Any] | None
    modes: Modes | None
    hub_model_id: str | None
    publisher: Publisher
    backward: Callable[[Any], None] | None

    @property
    def rules(self) -> Rules:
        """Whose behaviour the run has where hexloop and transformers differ."""
        return rules_of(self.args)

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
