"""How a Trainer makes its model, optimizer and schedule, and prepares them for a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import Adapters
from hexloop.app.assembly.framework import torch_framework
from hexloop.app.assembly.random_state import seeded
from hexloop.app.assembly.state import is_sharded
from hexloop.app.hooks import is_overridden, standard
from hexloop.app.rules import rules_of
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import Problem


class TrainerModel(TrainerAttributes):
    """The model, the optimizer and the schedule, by overridden methods where there are some."""

    hp_name: Callable[[Any], str] | None = None
    """Returns the name of a trial of a hyperparameter search."""

    _moved_model: Any = None
    """The model that an overridden `_move_model_to_device` has moved."""

    # Model

    def call_model_init(self, trial: Any = None) -> Any:
        """Return a new model from `model_init`, which may take the trial of a search.

        Args:
            trial: the trial of a search, if there is one.

        Raises:
            ConfigurationError: if there is no `model_init`, if it takes more, or if it returns None.
        """
        arguments = (trial,) if takes_trial(self.model_init, trial) else ()
        adapters: Adapters | None = vars(self).get("adapters")  # a subclass may call this before the constructor
        with nullcontext() if adapters is None else adapters.engine.model_init(self.args):
            model = self.model_init(*arguments)  # type: ignore[misc]
        if model is None:
            raise ConfigurationError(Problem("model_init returned None; let it return the model.", kind=RuntimeError))
        return model

    def _renew_model(self) -> None:
        """Rebuild the model if there is a `model_init` and the current one was trained; with `reproduce` always."""
        is_fresh = rules_of(self.args).keeps_fresh_model and self.state.global_step == 0 and not self._renews_model
        if self.model_init is not None and not is_fresh:
            if self._renews_model:
                self._leave_trial()
            with seeded(self.adapters.device, self.args.seed):
                self.model = self.model_wrapped = self.call_model_init(self._trial)
            framework = self.adapters.framework
            framework.receive(framework.unwrapped(self.model), self.args)
            self.optimizer = self.lr_scheduler = None  # also one that the user set: it holds the old model

    def _leave_trial(self) -> None:
        """Free the model of the last trial, and let the state be that of a run outside of the search, if it is one."""
        self.model = self.model_wrapped = self.optimizer = self.lr_scheduler = self._standard_optimizer = None
        handler = self.callback_handler
        handler.model = handler.optimizer = handler.lr_scheduler = handler.train_dataloader = None
        self._renews_model = False
        if self._live_trial is None:
            self.state.checkpoints_folder = str(self.args.output_dir)
            self.state.is_hyper_param_search, self.state.trial_name, self.state.trial_params = False, None, None

    @standard
    def place_model(self, moves: bool = True) -> Any:
        """Move the model to its device, with the memory options of the arguments, and with layers in its precision.

        A sharded model stays where it is.

        Args:
            moves: whether the model is moved to the device.
        """
        sharded = is_sharded(self.adapters.parallelism, self.model)
        moves = moves and self.place_model_on_device and not sharded
        if moves and is_overridden(self, "_move_model_to_device"):
            self._move_by_override()
            moves = False
        placed = self.adapters.framework.place(self.model, self.args, self.adapters.device, moves)
        self.adapters.precision.convert(self.adapters.framework.unwrapped(placed))
        return placed

    def _move_by_override(self) -> None:
        """Call an overridden `_move_model_to_device`, once for each model."""
        sharded = self.adapters.parallelism.capabilities.sharded
        if self._moved_model is not self.model and self.place_model_on_device and not sharded:
            self._moved_model = self.model
            self._move_model_to_device(self.model, self.args.device)

    @standard
    def _move_model_to_device(self, model: Any, device: Any) -> None:
        """Move `model` to `device`. If overridden, the constructor calls it, and a run with a new model."""
        model.to(device)

    @standard
    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        """Return `model`. If overridden, the engine prepares the model that it returns, and evaluations use it.

        training: False for an evaluation, which passes its loader.
        """
        return model

    @standard
    def get_num_trainable_parameters(self) -> int:
        """Return the number of trainable values."""
        return self.adapters.framework.parameter_counts(self._collect_parts())[1]

    # Optimizer and schedule

    @standard
    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Make the optimizer, then the schedule over `num_training_steps` optimizer steps.

        Args:
            num_training_steps: optimizer steps of the whole run.
        """
        if is_overridden(self, "create_optimizer"):
            self.create_optimizer()  # earlier releases of transformers passed nothing, and overrides take nothing
        else:
            self.create_optimizer(self.model_wrapped)
        self.create_scheduler(num_training_steps=num_training_steps)

    @standard
    def create_optimizer(self, model: Any = None) -> Any:
        """Return the optimizer of the trainable parameters; make it if there is none.

        It has two parameter groups, with and without weight decay, also where one is empty; with `param_groups` it has
        those of the rules as well.

        Args:
            model: the model whose parameters are meant; by default the Trainer's.
        """
        if self.optimizer is None:
            target = self.model if model is None else model
            framework = self.adapters.framework
            if self.optimizer_cls_and_kwargs is not None:
                optimizer_class, options = self.optimizer_cls_and_kwargs
            elif is_overridden(self, "get_optimizer_cls_and_kwargs"):
                optimizer_class, options = self.get_optimizer_cls_and_kwargs(self.args, target)
            else:
                optimizer_class, options = framework.choose_optimizer(self.args, target)
            decayed = self.get_decay_parameter_names(target)
            keeps_empty, decay = self.adapters.engine.keeps_empty_groups, self.args.weight_decay
            if self.args.param_groups:
                main = optimizer_class, options
                self.optimizer = framework.build_by_rules(self.args, target, main, decayed)
            else:
                self.optimizer = framework.build_optimizer(
                    target, optimizer_class, options, decayed, decay, keeps_empty
                )
            self._standard_optimizer = self.optimizer
        return self.optimizer

    @standard
    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the learning-rate scheduler, one of torch; make it if there is none.

        It is of the class that transformers' `get_scheduler` returns for `lr_scheduler_type`: a LambdaLR, or a
        ReduceLROnPlateau or GreedyLR. A run steps it; a script that drives the optimizer itself calls its `step()`.

        Args:
            num_training_steps: optimizer steps of the whole run.
            optimizer: the optimizer whose rates are scheduled; by default the Trainer's.
        """
        if self.lr_scheduler is None:
            target = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = self.adapters.engine.schedule(self.args, target, num_training_steps)
            if self.lr_scheduler is None:
                self.lr_scheduler = self.adapters.framework.schedule(self.args, target, num_training_steps)
                self._standard_scheduler = self.lr_scheduler
            self._scheduler_of_run = self.lr_scheduler  # also if the user calls this: a run has another length
        return self.lr_scheduler

    @staticmethod
    @standard
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: Any = None) -> tuple[type[Any], dict[str, Any]]:
        """Return the optimizer class that the arguments name, and its keyword arguments.

        Args:
            args: the arguments that name the optimizer.
            model: the model that is trained, which some optimizers need.
        """
        return torch_framework().choose_optimizer(args, model)

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Return the names of the parameters with weight decay: no biases, no normalisation layers.

        Args:
            model: the model whose parameters are meant; by default the Trainer's.
        """
        called_on_class: Any = self  # with None, as some libraries do
        framework = torch_framework() if called_on_class is None else self.adapters.framework
        return framework.decayed_names(model)

    def get_learning_rates(self) -> list[float]:
        """Return the rate of each parameter group.

        Raises:
            ConfigurationError: if there is no optimizer yet.
        """
        return [group["lr"] for group in self._made_optimizer().param_groups]

    @standard
    def _get_learning_rate(self) -> float:
        """Return the rate of the first parameter group. If overridden, it returns the rate that is logged."""
        return float(self.get_learning_rates()[0])

    def get_optimizer_group(self, param: Any = None) -> Any:
        """Return the parameter group of a parameter; without one, or for one in no group, each group's parameters.

        Args:
            param: a parameter of the model; None for all groups.

        Raises:
            ConfigurationError: if there is no optimizer yet.
        """
        groups = self._made_optimizer().param_groups
        found = (group for group in groups if any(each is param for each in group["params"]))
        return next(found, [group["params"] for group in groups])

    def _made_optimizer(self) -> Any:
        if self.optimizer is None:
            raise ConfigurationError("The Trainer has no optimizer yet; call create_optimizer() or train() first.")
        return self.optimizer

    # Preparation of a run

    def _forget_run(self) -> None:
        """Drop the optimizer, the schedule and the wrapped model of an earlier run."""
        self._forget_own_optimizer()
        self.model_wrapped = self.model

    def _forget_own_optimizer(self) -> None:
        """Drop the optimizer and the schedule that an earlier run made; keep the user's, and what they drive.

        With `reproduce` the optimizer is kept, with its moments, as in transformers.
        """
        if self._own_scheduler:
            self.lr_scheduler = None
        is_driven = getattr(self.lr_scheduler, "optimizer", None) is self.optimizer
        if self._own_optimizer and not is_driven and rules_of(self.args).new_optimizer:
            self.optimizer = None

    def _prepare_run(self, model: Any, total_steps: int, loader: Any, resume_from: str | bool | None) -> Any:
        """Return the prepared model of a run, by an overridden `_prepare_for_training` if there is one."""
        if not is_overridden(self, "_prepare_for_training"):
            return self._prepare_through_accelerator(model, total_steps)
        prepared, returned = self._prepare_for_training(total_steps, loader, self._location_of(resume_from))
        if returned is not loader:
            raise ConfigurationError(
                "_prepare_for_training returned another loader than it received, but the run has already read the "
                "length of the data; override get_train_dataloader to change the loader."
            )
        if self.optimizer is None or self.lr_scheduler is None:
            missing = "optimizer" if self.optimizer is None else "lr_scheduler"
            raise ConfigurationError(
                f"The overridden _prepare_for_training has not set {missing}; call super()._prepare_for_training(...), "
                "or make one."
            )
        self.model_wrapped = prepared
        return prepared

    @standard
    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None
    ) -> tuple[Any, Any]:
        """Wrap the model, make the optimizer and the schedule for `max_steps`; return the model and the loader.

        If overridden, a run calls it, and trains the model that it returns. The checkpoint is loaded afterwards.
        """
        return self._prepare_through_accelerator(self.model, max_steps), train_dataloader

    def _prepare_through_accelerator(self, model: Any, total_steps: int) -> Any:
        """Prepare a run, and pass its model and optimizer through a function assigned to `accelerator.prepare`."""
        wrapped, prepare = self._prepare_for_run(model, total_steps), self._assigned("prepare")
        if prepare is not None:
            wrapped, self.optimizer = prepare(wrapped, self.optimizer)
            self.model_wrapped = wrapped
        return wrapped

    def _prepare_for_run(self, model: Any, total_steps: int) -> Any:
        """Wrap the model, make the optimizer over what it then holds, compile, make the schedule."""

        def build_optimizer(wrapped: Any) -> Any:
            self.model_wrapped = wrapped
            self.create_optimizer_and_scheduler(total_steps)
            if self.args.param_groups and self.optimizer is not self._standard_optimizer:
                raise ConfigurationError(
                    "You chose param_groups, but an overridden create_optimizer made the optimizer, with groups of its "
                    "own; let it call super().create_optimizer(), which makes the groups, or leave param_groups out."
                )
            return self.optimizer

        self._forget_own_optimizer()
        if is_overridden(self, "_wrap_model"):
            model = self._wrap_model(model)
        makes_optimizer, makes_scheduler = self.optimizer is None, self.lr_scheduler is None
        try:
            wrapped, self.optimizer = self.adapters.parallelism.prepare(model, build_optimizer)
            if self.lr_scheduler is None:  # the engine has made the optimizer itself
                self.create_scheduler(num_training_steps=total_steps)
        finally:  # the next run replaces what this one made
            if makes_optimizer:
                self._optimizer_of_run = self.optimizer
            if makes_scheduler:
                self._scheduler_of_run = self.lr_scheduler
        self.model_wrapped = wrapped = self.adapters.framework.compiled(wrapped, self.args)
        if rules_of(self.args).run_sets_training_mode:
            self.adapters.framework.enter_training(wrapped)
        return wrapped


def takes_trial(model_init: Callable[..., Any] | None, trial: Any) -> bool:
    """Return whether a `model_init` takes the trial of a search; without one, an optional argument is left out.

    Raises ConfigurationError, also of the class that transformers raises, if it is None or takes more.
    """
    if model_init is None:
        raise ConfigurationError(Problem("The Trainer has no model_init; pass one to its constructor.", kind=TypeError))
    bound = len(model_init.args) + len(model_init.keywords) if isinstance(model_init, partial) else 0
    function = model_init.func if isinstance(model_init, partial) else model_init
    parameters = inspect.signature(function).parameters.values()
    count = len(parameters) - bound
    if count > 1:
        problem = (
            f"model_init takes {count} arguments, but it is called with the trial of a search, or without any; let it "
            "take at most one."
        )
        raise ConfigurationError(Problem(problem, kind=RuntimeError))
    return count == 1 and (trial is not None or any(each.default is each.empty for each in parameters))
