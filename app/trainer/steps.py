"""What a Trainer does in a training step, and its accelerator: standard versions of what subclasses override."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from attrs import frozen

from hexloop.app.arguments.losses import loss_wanted
from hexloop.app.assembly import torch as assembly
from hexloop.app.hooks import is_overridden, standard
from hexloop.app.rules import rules_of
from hexloop.app.run.session import Session
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.domain.errors import ConfigurationError, DataError, RunStateError

if TYPE_CHECKING:
    from torch import Tensor

    from hexloop.app.assembly.torch.losses import LossChoice
    from hexloop.app.trainer.shared_accelerator import AcceleratorParts


@frozen
class Removable:
    """A hook, with the method that removes it."""

    remove: Callable[[], None]


class TrainerSteps(TrainerAttributes):
    """What each hook of a step does unless it is overridden; an override may call it."""

    neftune_hook_handle: Removable | None = None
    """The noise that `_activate_neftune` added; None outside of loops of user code."""

    _window_outside_run: int | None = None

    _standard_loss: tuple[Any, LossChoice] | None = None
    """The loss that the standard `compute_loss` last computed, after the values that it depends on."""

    # A step

    @standard
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward of one micro-batch; return its share of the window's loss, detached.

        Outside a run, the gradients of the loss are added to those of `model`, as in a window of
        `current_gradient_accumulation_steps`.

        Args:
            model: the model that is trained.
            inputs: the batch.
            num_items_in_batch: what the window's loss is divided by, such as its label tokens.
        """
        session = self._session
        if session is None:
            return self._step_outside_run(model, inputs, num_items_in_batch)
        last = bool(session.run.signals["sync_gradients"])
        loss: Tensor = session.learner.standard.micro_step(inputs, num_items_in_batch, last)
        return loss

    def _step_outside_run(self, model: Any, inputs: Any, items: Any) -> Tensor:
        model.train()
        with self.compute_loss_context_manager():
            loss: Tensor = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=items)
        by_items = self.model_accepts_loss_kwargs and items is not None
        is_scaled = self.loss_is_scaled_for_ga
        if not (by_items or self.compute_loss_func is not None if is_scaled is None else is_scaled):
            loss = loss / self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()

    @standard
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a batch, with `return_outputs` together with the outputs of the model.

        Args:
            model: the model that is trained.
            inputs: the batch.
            return_outputs: return the outputs of the model as well.
            num_items_in_batch: what the window's loss is divided by, such as its label tokens.
        """
        return self._loss_as_it_is_now().compute(model, inputs, return_outputs, num_items_in_batch)

    def _loss_as_it_is_now(self) -> LossChoice:
        """Return the standard loss by the present attributes: made again if one changed, as steps may call it often."""
        values = (
            *(self.model, self.model_accepts_loss_kwargs, self.compute_loss_func, self.label_smoother),
            *(self.args.label_smoothing_factor, self.args.loss_weighting, self.args.average_tokens_across_devices),
            *(rules_of(self.args), loss_wanted(self.args)),
            tuple(self.label_names),
        )
        if self._standard_loss is None or self._standard_loss[0] != values:
            self._standard_loss = values, assembly.losses.standard_loss(self._collect_parts())
        return self._standard_loss[1]

    @standard
    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any = None
    ) -> tuple[list[Any], Any]:
        """Return the next `num_batches` micro-batches, or all that are left, and their item count, on the device.

        The count is None if the loss needs none, and if no run is live. If overridden, it provides every window.

        Args:
            epoch_iterator: the batches of the epoch.
            num_batches: micro-batches of the window.
            device: where the count is needed.
        """
        samples = list(islice(epoch_iterator, num_batches))
        return samples, self._get_num_items_in_batch(samples, device)

    @standard
    def _get_num_items_in_batch(self, batch_samples: Sequence[Any], device: Any) -> Any:
        """Return the items of the micro-batches of an optimizer step, over all processes, on the device.

        None if the loss needs no count, or no run is live. If overridden, it counts the items of every step, and those
        of each batch of an evaluation.
        """
        from hexloop.app.overrides.evaluation import PredictedBatch
        from hexloop.app.overrides.steps import run_loss

        if isinstance(batch_samples, PredictedBatch):
            parts = self._collect_parts()
            return assembly.losses.predicted_items(parts, run_loss(parts), batch_samples[0])
        if not batch_samples or self._session is None:
            return None
        return self._session.learner.count_items(batch_samples)

    @standard
    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Count the tokens of a micro-batch for `include_num_input_tokens_seen`. If overridden, it counts those of all.

        Raises RunStateError if no run is live.
        """
        counter = self._live("_track_num_input_tokens").counters.tokens
        if counter is not None:
            counter(inputs)

    @property
    def current_gradient_accumulation_steps(self) -> int:
        """The micro-batches of the current optimizer step, which may be fewer at the end of an epoch.

        Outside a run it may be assigned, for calls of `training_step`. A run has its own, and raises RunStateError.
        """
        length = self._window_outside_run if self._session is None else self._session.learner.window.length
        return self.args.gradient_accumulation_steps if length is None else length

    @current_gradient_accumulation_steps.setter
    def current_gradient_accumulation_steps(self, steps: int) -> None:
        if self._session is not None:
            raise RunStateError(
                "You assigned current_gradient_accumulation_steps while a run is live, which counts the micro-batches "
                "of its steps itself; override get_batch_samples to change them."
            )
        self._window_outside_run = steps

    @standard
    def compute_loss_context_manager(self) -> ExitStack:
        """Return the context in which the loss is computed, in every step and every prediction."""
        with ExitStack() as contexts:
            contexts.enter_context(self.autocast_smart_context_manager())
            return contexts.pop_all()

    @standard
    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager[Any]:
        """Return a context in which the model computes in the run's precision. If overridden, every loss uses it.

        The standard step computes in that precision without it. With `reproduce` it is empty, as in transformers.

        Args:
            cache_enabled: whether autocast keeps converted weights within the context.
        """
        if not rules_of(self.args).own_precision:
            return nullcontext()
        context: AbstractContextManager[Any] = self.accelerator.autocast()
        return context

    @standard
    def floating_point_ops(self, inputs: Any) -> float:
        """Return the floating-point operations of forward and backward on `inputs`.

        The model's own figure, or one by its parameters for a model of transformers, else measured. If overridden, it
        is called for every micro-batch.

        Args:
            inputs: the batch.
        """
        return assembly.batches.floating_point_operations(self.model, inputs)

    @standard
    def store_flos(self) -> None:
        """Bring `state.total_flos` up to date; checkpoints and the log at the end do this themselves.

        If overridden, it is called before each log of a loss, before each save, and at the end of the run.
        """
        if self._session is not None:
            self._session.counters.settle()

    @standard
    def _prepare_inputs(self, inputs: Any) -> Any:
        """Return a copy of a batch's mapping, with its tensors on the device.

        If overridden, it is called for every micro-batch of a step and of an evaluation. Raises DataError if the batch
        is empty.
        """
        if is_overridden(self, "_prepare_input"):
            return self._prepare_input(inputs)
        if isinstance(inputs, Mapping) and not inputs:
            taken = ", ".join(assembly.data.signature_columns(self.model, self.label_names))
            raise DataError(f"The batch is empty; check that the data have columns that the model takes: {taken}.")
        return assembly.data.prepared_inputs(inputs, self.adapters.device.name)

    @standard
    def _prepare_input(self, data: Any) -> Any:
        """Return `data` (a tensor, or nested mappings, lists and tuples of them) with its tensors on the device.

        If overridden, `_prepare_inputs` calls it with each batch, and this with each entry of one.
        """
        if not (isinstance(data, Mapping | list | tuple) or assembly.tensors.is_tensor(data)):
            return data
        if assembly.tensors.is_tensor(data) or not is_overridden(self, "_prepare_input"):
            return assembly.data.prepared_inputs(data, self.adapters.device.name)
        return assembly.data.map_entries(self._prepare_input, data)

    @standard
    def _clip_grad_norm(self, model: Any) -> Any:
        """Clip the gradients of `model` to `max_grad_norm`; return their norm before, a scalar on the device.

        If overridden, it clips in every optimizer step whose `max_grad_norm` is above 0.
        """
        return assembly.tensors.clip_gradients(model.parameters(), self.args.max_grad_norm)

    @standard
    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return `grad_norm`, or the norm of the gradients of `model` if that is None.

        If overridden, it returns the norm that is logged.
        """
        return assembly.tensors.clip_gradients(model.parameters(), float("inf")) if grad_norm is None else grad_norm

    @property
    def neftune_noise_alpha(self) -> float | None:
        """The strength of the noise on embeddings, the same as in the arguments; the next run uses an assigned one."""
        return self.args.neftune_noise_alpha

    @neftune_noise_alpha.setter
    def neftune_noise_alpha(self, alpha: float | None) -> None:
        self.args.neftune_noise_alpha = alpha

    def _activate_neftune(self, model: Any) -> Any:
        """Add the noise of `neftune_noise_alpha` to the embeddings of `model`, in training mode; return the model.

        For loops of user code: a run adds and removes it by itself. `neftune_hook_handle.remove()` removes it. Raises
        ConfigurationError if there is no `neftune_noise_alpha`, or the model does not name its embeddings.
        """
        alpha = self.neftune_noise_alpha
        if alpha is None:
            raise ConfigurationError("_activate_neftune needs the strength of the noise; set neftune_noise_alpha.")
        self.neftune_hook_handle = Removable(
            assembly.model.add_embedding_noise(self.accelerator.unwrap_model(model), alpha)
        )
        return model

    def _deactivate_neftune(self, model: Any) -> None:
        """Remove the noise that `_activate_neftune` added. Raises RunStateError if it added none."""
        if self.neftune_hook_handle is None:
            raise RunStateError(
                "_deactivate_neftune removes the noise that _activate_neftune added, but it added none."
            )
        self.neftune_hook_handle.remove()
        self.neftune_hook_handle = None

    # The accelerator

    @property
    def accelerator(self) -> Any:
        """The run with the interface of accelerate's Accelerator; an assigned one is adapted to the run."""
        if self._accelerator is None:
            from hexloop.app.trainer.accelerator import Accelerator

            self._accelerator = Accelerator(self._accelerator_parts())
        return self._accelerator

    @accelerator.setter
    def accelerator(self, accelerator: Any) -> None:
        from hexloop.app.trainer.accelerator import adopted

        made = "adapters" in vars(self)  # unless a subclass with a loop of its own leaves out this constructor
        self._accelerator = adopted(self._accelerator_parts(), accelerator) if made else accelerator

    @standard
    def create_accelerator_and_postprocess(self) -> None:
        """Make a new `accelerator`, and let accelerate's functions find the run. The constructor calls it."""
        self._accelerator = None
        self.adapters.framework.share(self.args, self.adapters, self.model, self._follow)
        if is_overridden(self, "_build_accelerator_args"):
            self.accelerator.real  # noqa: B018  # so that keywords that the run cannot follow are refused now

    @standard
    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        """Return the keywords with which an `accelerate.Accelerator` is made, `kwargs` among them.

        If overridden, it may add keywords. ConfigurationError is raised if it changes what the run decides.
        """
        return {**assembly.accelerator.usual_arguments(self.args, self.adapters, self.model), **kwargs}

    def _accelerator_parts(self) -> AcceleratorParts:
        from hexloop.app.trainer.shared_accelerator import AcceleratorParts

        def make() -> Any:
            overridden = is_overridden(self, "_build_accelerator_args")
            build = self._build_accelerator_args if overridden else None
            return assembly.accelerator.make(self.args, self.adapters, self.model, build)

        return AcceleratorParts(
            self.args,
            self.adapters,
            run=lambda: None if self._session is None else self._session.run,
            owns=self._owns,
            objects=lambda: (self.model_wrapped, self.optimizer, self.lr_scheduler),
            make=make,
        )

    def _follow(self) -> None:
        """Let accelerate's state show the live run, if there is one."""
        self._attach(self._session)

    def _owns(self, candidate: object, evaluation: bool = False) -> bool:
        """Return whether a run prepares an object itself: its model, its optimizer, its schedule, its loaders.

        Without a run, a loop of user code trains them, so that accelerate has to prepare them, except for `evaluation`.
        """
        if assembly.data.is_own_loader(candidate):
            return True
        own = (self.model, self.model_wrapped, self.optimizer, self.lr_scheduler)
        return (self._is_active or evaluation) and any(candidate is each for each in own)

    def _attach(self, session: Session | None) -> None:
        """Set the live session, which accelerate's state shows, if there is one."""
        if session is None and self._session is not None:
            self.adapters.framework.run_ended(self._session.run)
            self._session.run.signals["sync_gradients"] = True  # a run may end in the middle of a window
        self._session, self._standard_loss = session, None
        if session is not None:
            self.adapters.framework.run_began(session.run)

    @property
    def gather_function(self) -> Callable[..., Any]:
        """How overridden evaluation loops gather tensors: `accelerator.gather_for_metrics`, or what was assigned.

        The standard evaluation loop gathers by itself, each row once. With `reproduce`, it keeps repeated rows as long
        as `accelerator.gather` is assigned.
        """
        if self._own_gather_function is not None:
            return self._own_gather_function
        return partial(self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object)

    @gather_function.setter
    def gather_function(self, function: Callable[..., Any] | None) -> None:
        self._own_gather_function = function

    def _nested_gather(self, tensors: Any, name: str | None = None) -> Any:
        """Return the tensors of all processes, concatenated, at any depth of lists, tuples and mappings; None for None.

        name: ignored, as in transformers.
        """
        return None if tensors is None else self.accelerator.gather(tensors)

    def _gather_and_numpify(self, tensors: Any, name: str | None = None) -> Any:
        """Return what `_nested_gather` returns, as arrays."""
        return assembly.tensors.nested_arrays(self._nested_gather(tensors))

    def _pad_across_processes(self, tensor: Any, pad_index: int = -100) -> Any:
        """Return the tensors of this process, padded to the longest of all processes in their second dimension."""
        return self.accelerator.pad_across_processes(tensor, dim=1, pad_index=pad_index)
