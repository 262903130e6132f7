"""The methods of a Trainer that subclasses override, in their standard versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import islice
from typing import Any

from torch import Tensor

from hexloop.app.run import saving
from hexloop.app.run.session import RunHost, Session
from hexloop.app.trainer.accelerator import Accelerator, adopted
from hexloop.app.trainer.shared_accelerator import AcceleratorParts
from hexloop.app.trainer.stages import TrainerStages
from hexloop.app.wiring import accelerator as sharing
from hexloop.app.wiring import data
from hexloop.app.wiring.batches import end_pass, floating_point_operations
from hexloop.app.wiring.evaluation import LossChoice, standard_loss, standard_prediction_step
from hexloop.app.wiring.parts import Hooks, TrainerParts, is_overridden, standard
from hexloop.domain.errors import DataError, RunStateError
from hexloop.domain.loop import log_evaluate_save


class TrainerHooks(TrainerStages):
    """What each hook does unless it is overridden; an override may call it."""

    _window_outside_run: int | None = None

    _is_active: bool = False
    """Whether a run is being constructed or is live."""

    _standard_loss: tuple[Any, LossChoice] | None = None
    """The loss that the standard `compute_loss` last computed, after the values that it depends on."""

    # The accelerator

    @property
    def accelerator(self) -> Any:
        """The run with the interface of accelerate's Accelerator; an assigned one is adapted to the run."""
        if self._accelerator is None:
            self._accelerator = Accelerator(self._accelerator_parts())
        return self._accelerator

    @accelerator.setter
    def accelerator(self, accelerator: Any) -> None:
        made = "adapters" in vars(self)  # unless a subclass with a loop of its own leaves out this constructor
        self._accelerator = adopted(self._accelerator_parts(), accelerator) if made else accelerator

    @standard
    def create_accelerator_and_postprocess(self) -> None:
        """Make a new `accelerator`, and let accelerate's functions find the run. The constructor calls it."""
        self._accelerator = None
        sharing.share_run(self.args, self.adapters, self.model, self._follow)
        if is_overridden(self, "_build_accelerator_args"):
            self.accelerator.real  # noqa: B018  # so that keywords that the run cannot follow are refused now

    @standard
    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        """Return the keywords with which an `accelerate.Accelerator` is made, `kwargs` among them.

        If overridden, it may add keywords. ConfigurationError is raised if it changes what the run decides.
        """
        return {**sharing.usual_arguments(self.args, self.adapters, self.model), **kwargs}

    def _accelerator_parts(self) -> AcceleratorParts:
        def make() -> Any:
            overridden = is_overridden(self, "_build_accelerator_args")
            build = self._build_accelerator_args if overridden else None
            return sharing.make(self.args, self.adapters, self.model, build)

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
        if data.is_own_loader(candidate):
            return True
        own = (self.model, self.model_wrapped, self.optimizer, self.lr_scheduler)
        return (self._is_active or evaluation) and any(candidate is each for each in own)

    def _attach(self, session: Session | None) -> None:
        """Set the live session, which accelerate's state shows, if there is one."""
        if session is None and self._session is not None:
            end_pass(self._session.run.batches)
            self._session.run.signals["sync_gradients"] = True  # a run may end in the middle of a window
        self._session, self._standard_loss = session, None
        if session is not None:
            session.run.signals = sharing.shown(session.run.signals)

    def _assigned(self, name: str) -> Any:
        """Return a method that was assigned to the accelerator, or that of an assigned one; None if there is none."""
        accelerator = self._accelerator
        if accelerator is None:
            return None
        return accelerator.assigned(name) if isinstance(accelerator, Accelerator) else getattr(accelerator, name, None)

    def _through_prepare(self, loader: Any) -> Any:
        """Return a loader as a function that was assigned to `accelerator.prepare` returns it."""
        prepare = self._assigned("prepare")
        return loader if prepare is None else prepare(loader)

    def _prepare_through_accelerator(self, model: Any, total_steps: int) -> Any:
        """Prepare a run, and pass its model and optimizer through a function assigned to `accelerator.prepare`."""
        wrapped, prepare = self._prepare_for_run(model, total_steps), self._assigned("prepare")
        if prepare is not None:
            wrapped, self.optimizer = prepare(wrapped, self.optimizer)
            self.model_wrapped = wrapped
        return wrapped

    # A step

    @standard
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward of one micro-batch; return its share of the window's loss, detached.

        Outside a run, the gradients of the loss are added to those of `model`, as in a window of
        `current_gradient_accumulation_steps`.
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
        """Return the loss of a batch, with `return_outputs` together with the outputs of the model."""
        return self._loss_as_it_is_now().compute(model, inputs, return_outputs, num_items_in_batch)

    def _loss_as_it_is_now(self) -> LossChoice:
        """Return the standard loss by the present attributes: made again if one changed, as steps may call it often."""
        values = (
            *(self.model, self.model_accepts_loss_kwargs, self.compute_loss_func, self.label_smoother),
            *(self.args.label_smoothing_factor, self.args.loss_weighting, self.args.average_tokens_across_devices),
            self.args.reproduce,
            tuple(self.label_names),
        )
        if self._standard_loss is None or self._standard_loss[0] != values:
            self._standard_loss = values, standard_loss(self._collect_parts())
        return self._standard_loss[1]

    @standard
    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any = None
    ) -> tuple[list[Any], Any]:
        """Return the next `num_batches` micro-batches, or all that are left, and their item count, on the device.

        The count is None if the loss needs none, and if no run is live. If overridden, it provides every window.
        """
        samples = list(islice(epoch_iterator, num_batches))
        return samples, self._get_num_items_in_batch(samples, device)

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
        """
        if self.args.reproduce is not None:
            return nullcontext()
        context: AbstractContextManager[Any] = self.accelerator.autocast()
        return context

    @standard
    def floating_point_ops(self, inputs: Any) -> float:
        """Return the floating-point operations of forward and backward on `inputs`.

        The model's own figure, or one by its parameters for a model of transformers, else measured. If overridden, it
        is called for every micro-batch.
        """
        return floating_point_operations(self.model, inputs)

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
            taken = ", ".join(data.signature_columns(self.model, self.label_names))
            raise DataError(f"The batch is empty; check that the data have columns that the model takes: {taken}.")
        return data.prepared_inputs(inputs, self.adapters.device.name)

    @standard
    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Any, Any]:
        """Return the loss, the logits and the labels of a batch, each None if missing or not asked for."""
        step = standard_prediction_step(self._collect_parts())
        predicted: tuple[Tensor | None, Any, Any] = step(model, inputs, prediction_loss_only, ignore_keys)
        return predicted

    # Checkpoints and boundaries

    @standard
    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write the model's files, with the weights in `state_dict` if given. `save_model` calls it."""
        saving.save_model(self._collect_parts(), self._received(output_dir), state_dict)

    @standard
    def _save_checkpoint(self, model: Any, trial: Any = None, metrics: Any = None) -> None:
        """Take a checkpoint of the run as it is, published when this returns.

        If overridden, it replaces the default save. The caller calls `on_save`. In a subclass with its own `train`, it
        writes the model and the state, without optimizer and schedule, to the folder of the step. Otherwise it raises
        RunStateError if no run is live.
        """
        trainer: Any = self
        if self._session is None and not type(trainer).train.__module__.startswith("hexloop."):
            folder = f"{self._get_output_dir(trial)}/checkpoint-{self.state.global_step}"
            trainer.save_model(folder, _internal_call=True)
            if self.args.should_save:
                saving.save_state(self._collect_parts(), folder)
            return
        session = self._live("_save_checkpoint")
        for event in session.checkpoints.take(session.run.state):
            session.run.resolve_save_requests(event)
            self._dispatcher.dispatch(event)

    @standard
    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: Any,
        model: Any,
        trial: Any,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """Log, evaluate and save what is due at this boundary. Raises RunStateError if no run is live.

        If overridden, it is called after every optimizer step and every epoch, as one opaque action; what it does not
        do is not done. tr_loss: the sum of the losses since the last log, which sets it to zero in place.
        """
        run = self._live("_maybe_log_save_evaluate").run
        for event in log_evaluate_save(run):
            self._dispatcher.dispatch(event)
        if run.state.logged_step == run.state.step and isinstance(tr_loss, Tensor):
            tr_loss.zero_()

    # What a run receives

    def _collect_parts(self) -> TrainerParts:
        """Collect the attributes and hooks as they are now."""
        return TrainerParts(
            args=self.args,
            started_in=self._started_in,
            adapters=self.adapters,
            hooks=Hooks.of(self),
            model=self.model,
            model_wrapped=self.model_wrapped,
            optimizer=self.optimizer,
            lr_scheduler=self.lr_scheduler,
            makes_optimizer=self.makes_optimizer,
            makes_scheduler=self.makes_scheduler,
            own_optimizer=self._own_optimizer,
            standard_optimizer=self._standard_optimizer,
            standard_scheduler=self._standard_scheduler,
            train_dataset=self.train_dataset,
            eval_dataset=self.eval_dataset,
            data_collator=self.data_collator,
            processing_class=self.processing_class,
            compute_loss_func=self.compute_loss_func,
            compute_metrics=self.compute_metrics,
            preprocess_logits_for_metrics=self.preprocess_logits_for_metrics,
            label_names=self.label_names,
            label_smoother=self.label_smoother,
            model_accepts_loss_kwargs=self.model_accepts_loss_kwargs,
            loss_is_scaled_for_ga=self.loss_is_scaled_for_ga,
            main_input_name=self.main_input_name,
            signature_columns=self._signature_columns,
            can_return_loss=self.can_return_loss,
            train_batch_size=self._train_batch_size,
            ignore_keys_for_eval=self.ignore_keys_for_eval,
            callback_handler=self.callback_handler,
            dispatcher=self._dispatcher,
            state=self.state,
            control=self.control,
            requests=self._requests,
            preparation=self._preparation,
            kept_loaders=self._kept_loaders,
            gathers_all_rows=self._own_gather_function is not None
            and self._own_gather_function == self.accelerator.gather,
            trial=self._trial,
            run=None if self._session is None else self._session.run,
            modes=None if self._session is None else self._session.learner.modes,
            hub_model_id=self.hub_model_id,
            publisher=self._publisher,
            notices=self._notices,
            backward=self._assigned("backward"),
        )

    def _run_host(self) -> RunHost:
        """Return what a run calls while it is constructed, and where it leaves its results."""
        return RunHost(
            parts=self._collect_parts,
            memory=self._memory,
            renew_model=self._renew_model,
            prepare=self._prepare_run,
            forget_run=self._forget_run,
            set_active=partial(setattr, self, "_is_active"),
            attach=self._attach,
            set_outcome=partial(setattr, self, "outcome"),
            set_train_batch_size=self._update_auto_batch_size,
        )
