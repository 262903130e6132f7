"""Which methods of a Trainer may be overridden, and what the user's methods do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from attrs import frozen

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

    @property
    def override(self) -> Callable[..., Any] | None:
        """The user's method; None if there is none."""
        return self.method if self.overridden else None

    def call_override(self, *args: Any, **kwargs: Any) -> None:
        """Call the user's method, if there is one."""
        if self.overridden:
            self.method(*args, **kwargs)

    def call_if(self, needed: bool, *args: Any) -> None:
        """Call the method if it is the user's, or else if it is `needed`."""
        if needed or self.overridden:
            self.method(*args)


@frozen
class Hooks:
    """The overridable methods of a Trainer, each bound: those that it marks as `standard`.

    A hook is read as an attribute, by the name of its method without the underscore at the front; that of `_evaluate`
    is `evaluate_in_run`.
    """

    _methods: Mapping[str, tuple[Callable[..., Any], Any]]
    """Each method, and its function in the class; None if it was set on the instance. Few of them are ever read."""

    @classmethod
    def of(cls, instance: object) -> Hooks:
        """Look up each method of `instance`."""
        own, kind = vars(instance), type(instance)
        return cls(
            {
                name: (getattr(instance, method), None if method in own else getattr(kind, method))
                for name, method in _hook_names(kind).items()
            }
        )

    def __getattr__(self, name: str) -> Hook:
        if name.startswith("_") or name not in self._methods:
            raise AttributeError(f"The Trainer marks no method as the hook {name!r}")
        method, function = self._methods[name]
        return Hook(method, function is None or not is_standard(function))

    # What the user's methods do

    @property
    def computes_loss(self) -> bool:
        """Whether the user computes the loss."""
        return self.compute_loss.overridden

    @property
    def computes_in_context(self) -> bool:
        """Whether the user provides a context in which losses are computed."""
        return self.compute_loss_context_manager.overridden or self.autocast_smart_context_manager.overridden

    @property
    def takes_steps(self) -> bool:
        """Whether the user runs forward and backward of a micro-batch."""
        return self.training_step.overridden

    @property
    def takes_any_batch(self) -> bool:
        """Whether the user's own step or loss takes the batch, which may then be of any kind."""
        return self.compute_loss.overridden or self.training_step.overridden

    @property
    def predicts_any_batch(self) -> bool:
        """Whether the user's own prediction or loss takes the batch of an evaluation."""
        return self.compute_loss.overridden or self.prediction_step.overridden

    @property
    def prepares_inputs(self) -> bool:
        """Whether the user prepares the inputs of the model."""
        return self.prepare_inputs.overridden or self.prepare_input.overridden

    @property
    def clips(self) -> bool:
        """Whether the user clips the gradients or measures their norm."""
        return self.clip_grad_norm.overridden or self.get_grad_norm.overridden

    @property
    def within_a_pass(self) -> tuple[str, ...]:
        """The names of the user's methods that run within forward, backward, clipping or the update."""
        names = ("training_step", "compute_loss", "compute_loss_context_manager", "autocast_smart_context_manager",
                 "prepare_inputs", "prepare_input", "clip_grad_norm", "get_grad_norm")  # fmt: skip
        return tuple(self._methods[name][0].__name__ for name in names if getattr(self, name).overridden)

    @property
    def provides_windows(self) -> bool:
        """Whether the user provides or counts the micro-batches of an optimizer step."""
        return self.get_batch_samples.overridden or self.get_num_items_in_batch.overridden

    @property
    def chooses_optimizer(self) -> bool:
        """Whether the user chooses the class of the optimizer."""
        return self.get_optimizer_cls_and_kwargs.overridden

    @property
    def provides_training_data(self) -> bool:
        """Whether the user makes the loader of the training data."""
        return self.get_train_dataloader.overridden

    @property
    def evaluates(self) -> bool:
        """Whether the user's method carries out the evaluations of a run, as one action."""
        return self.evaluate_in_run.overridden or self.evaluate.overridden

    @property
    def observes_metrics(self) -> bool:
        """Whether the user's method passes the metrics of an evaluation to the schedule."""
        return self.evaluate_in_run.overridden

    @property
    def provides_evaluation_data(self) -> bool:
        """Whether a run may evaluate without `eval_dataset`."""
        return self.evaluates or self.get_eval_dataloader.overridden

    @property
    def follows_boundaries(self) -> bool:
        """Whether the user's method is called after every step, with the sum of the losses since the last log."""
        return self.maybe_log_save_evaluate.overridden

    @property
    def follows_saves(self) -> bool:
        """Whether a method of the user's continues after the saves within it, and may look for the checkpoint."""
        return self.run_epoch.overridden or self.maybe_log_save_evaluate.overridden

    @property
    def writes_weights(self) -> bool:
        """Whether the user writes the files of the model."""
        return self.save_model.overridden or self.save.overridden

    @property
    def writes_state(self) -> tuple[Hook, ...]:
        """The user's methods that write the state of a run beside the model, in the order in which they are called."""
        writing = self.save_optimizer_and_scheduler, self.save_scaler, self.save_rng_state
        return tuple(hook for hook in writing if hook.overridden)

    @property
    def writes_checkpoint(self) -> bool:
        """Whether the user writes files of a checkpoint, in `save_model`, `_save`, `_save_checkpoint` and so on."""
        return self.writes_weights or self.save_checkpoint.overridden or bool(self.writes_state)

    @property
    def loads_state(self) -> tuple[tuple[Hook, frozenset[str]], ...]:
        """The user's methods that load a checkpoint, in the order of transformers, and the components of each."""
        loading = (
            (self.load_from_checkpoint, frozenset({"model"})),
            (self.load_optimizer_and_scheduler, frozenset({"optimizer", "scheduler"})),
            (self.load_scaler, frozenset({"scaler"})),
            (self.load_rng_state, frozenset({"random"})),
        )
        return tuple(each for each in loading if each[0].overridden)


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
