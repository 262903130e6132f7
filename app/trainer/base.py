"""The attributes of a Trainer, and how it makes its model, optimizer and schedule."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks import CallbackHandler, EventDispatcher, TrainerControl, TrainerState
from hexloop.app.notices import Notices
from hexloop.app.run.determinism import seeded
from hexloop.app.run.memory_metrics import MemoryStages
from hexloop.app.run.session import RunOutcome, Session
from hexloop.app.wiring.adapters import Adapters
from hexloop.app.wiring.evaluation import smoother_for
from hexloop.app.wiring.model import (
    build_optimizer,
    choose_optimizer,
    decayed_names,
    disable_replication,
    make_lr_scheduler,
    place_model,
    returns_loss_by_default,
    takes_any_keyword,
    unwrapped,
)
from hexloop.app.wiring.parts import KeptLoaders, PreparationTime, is_overridden, standard
from hexloop.app.wiring.state import is_sharded
from hexloop.app.wiring.storage import WorkingFolder
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.requests import Requests
from hexloop.domain.wording import Problem


class TrainerBase:
    """The attributes that subclasses and callbacks read and write, and what makes model, optimizer and schedule."""

    args: TrainingArguments
    adapters: Adapters
    model: Any
    model_wrapped: Any
    """The model as the engine of the run prepared it; the model itself if nothing wraps it."""
    model_init: Callable[..., Any] | None
    train_dataset: Any
    eval_dataset: Any
    processing_class: Any
    data_collator: Callable[[list[Any]], Any]
    compute_loss_func: Callable[..., Any] | None
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    optimizer: Any
    lr_scheduler: Any
    optimizer_cls_and_kwargs: tuple[type[Any], dict[str, Any]] | None
    label_names: list[str]
    main_input_name: str
    is_model_parallel: bool
    """Whether the model is spread over several devices of this process."""

    place_model_on_device: bool
    """Whether the Trainer moves the model; a subclass may assign it after the constructor."""

    model_accepts_loss_kwargs: bool
    """Whether forward takes the number of items; a subclass may assign it after the constructor."""

    can_return_loss: bool
    """Whether forward returns a loss without labels."""

    loss_is_scaled_for_ga: bool | None = None
    """Whether an overridden `compute_loss` divides by `num_items_in_batch`; None: if the model's own loss does."""

    hp_name: Callable[[Any], str] | None = None
    """Returns the name of a trial of a hyperparameter search."""

    ignore_keys_for_eval: list[str] | None
    control: TrainerControl
    state: TrainerState
    callback_handler: CallbackHandler

    outcome: RunOutcome | None = None
    """How the last run ended; None while one is live, and after one that raised."""

    _notices: Notices
    """How what transformers does with a warning is handled: as it was in force when the Trainer was created."""

    _started_in: WorkingFolder
    """The working folder in which the Trainer was made, from which the paths of its arguments are resolved."""

    _memory: MemoryStages
    _dispatcher: EventDispatcher
    _requests: Requests
    _preparation: PreparationTime

    _session: Session | None
    """The live run; None between runs."""

    _kept_loaders: KeptLoaders
    """Evaluation loaders whose workers persist."""

    _accelerator: Any = None
    """What `accelerator` returns; None until it is needed."""

    _asks_for_each: bool = False
    """Whether an overridden `evaluate` is being called for each of several data sets."""

    _optimizer_of_run: Any = None
    _scheduler_of_run: Any = None
    """What the last run made for itself; the next run makes new ones."""

    _moved_model: Any = None
    """The model that an overridden `_move_model_to_device` has moved."""

    _standard_optimizer: Any = None
    _standard_scheduler: Any = None
    """What the standard `create_optimizer` and `create_scheduler` made from the arguments."""

    def _move_model_to_device(self, model: Any, device: Any) -> None:
        raise NotImplementedError

    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        raise NotImplementedError

    _trial: Any = None
    """The trial of a hyperparameter search, as `train` received it; None outside of one."""

    _is_in_own_train: bool = False

    @property
    def is_in_train(self) -> bool:
        """Whether a run is live; a subclass that replaces `train` may assign it."""
        return self._session is not None or self._is_in_own_train

    @is_in_train.setter
    def is_in_train(self, training: bool) -> None:
        self._is_in_own_train = training

    @property
    def model_preparation_time(self) -> float | None:
        """Seconds that an evaluation before any run took to prepare the model; evaluations report it if not None."""
        return self._preparation.seconds

    @model_preparation_time.setter
    def model_preparation_time(self, seconds: float | None) -> None:
        self._preparation.seconds = seconds

    @property
    def _train_batch_size(self) -> int:
        """Samples in a training micro-batch of this process: those of the arguments, or the smaller size found."""
        found: int | None = vars(self).get("found_batch_size")
        return self.args.train_batch_size if found is None else found

    @_train_batch_size.setter
    def _train_batch_size(self, size: int) -> None:
        vars(self)["found_batch_size"] = size

    @property
    def label_smoother(self) -> Any:
        """The loss of smoothed labels, None if labels are not smoothed; a subclass may assign another one or None.

        It is called with the outputs of the model and the labels, and may take `shift_labels` and
        `num_items_in_batch`.
        """
        if "_own_smoother" in vars(self):
            return self._own_smoother
        return smoother_for(self.model, self.args)

    @label_smoother.setter
    def label_smoother(self, smoother: Any) -> None:
        self._own_smoother = smoother

    # Model

    def call_model_init(self, trial: Any = None) -> Any:
        """Return a new model from `model_init`, which may take the trial of a search.

        Raises ConfigurationError if there is no `model_init`, if it takes more, or if it returns None.
        """
        arguments = (trial,) if takes_trial(self.model_init, trial) else ()
        adapters: Adapters | None = vars(self).get("adapters")  # a subclass may call this before the constructor
        with nullcontext() if adapters is None else adapters.engine.model_init(self.args):
            model = self.model_init(*arguments)  # type: ignore[misc]
        if model is None:
            raise ConfigurationError(Problem("model_init returned None; let it return the model.", kind=RuntimeError))
        return model

    def note_model(self) -> None:
        """Set the attributes that depend on the model; subclasses may assign others after the constructor."""
        model = unwrapped(self.model)
        devices = {each for each in (getattr(model, "hf_device_map", None) or {}).values() if each != "disk"}
        parallelized = getattr(model, "is_parallelizable", False) and getattr(model, "model_parallel", False)
        self.is_model_parallel = len(devices - {"cpu"}) > 1 or bool(parallelized)
        if self.is_model_parallel or getattr(model, "is_loaded_in_8bit", False):
            disable_replication(self.adapters, self.args)
        config: Any = getattr(model, "config", None)
        if hasattr(config, "save_pretrained"):
            config.use_cache = self.args.use_cache
        asked = self.args.place_model_on_device
        self.place_model_on_device = not devices if asked is None else asked
        self.model_accepts_loss_kwargs = takes_any_keyword(self.model)
        self.can_return_loss = returns_loss_by_default(self.model)

    def _renew_model(self) -> None:
        """Rebuild the model if there is a `model_init` and the current one was trained; with `reproduce` always."""
        if self.model_init is not None and (self.state.global_step > 0 or self.args.reproduce is not None):
            with seeded(self.adapters.device, self.args.seed):
                self.model = self.model_wrapped = self.call_model_init(self._trial)
            self.optimizer = self.lr_scheduler = None  # also one that the user set: it holds the old model

    @standard
    def place_model(self, moves: bool = True) -> Any:
        """Move the model to its device, with the memory options of the arguments. A sharded model stays where it is."""
        sharded = is_sharded(self.adapters.parallelism, self.model)
        moves = moves and self.place_model_on_device and not sharded
        if moves and is_overridden(self, "_move_model_to_device"):
            self._move_by_override()
            moves = False
        return place_model(self.model, self.args, self.adapters.device, moves)

    def _move_by_override(self) -> None:
        """Call an overridden `_move_model_to_device`, once for each model."""
        sharded = self.adapters.parallelism.capabilities.sharded
        if self._moved_model is not self.model and self.place_model_on_device and not sharded:
            self._moved_model = self.model
            self._move_model_to_device(self.model, self.args.device)

    @standard
    def get_num_trainable_parameters(self) -> int:
        """Return the number of trainable values."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return sum(map(self.adapters.engine.element_count, trained))

    # Optimizer and schedule

    @property
    def makes_optimizer(self) -> bool:
        """Whether the optimizer is the one that the arguments name."""
        theirs = is_overridden(self, "create_optimizer") or is_overridden(self, "create_optimizer_and_scheduler")
        return self._own_optimizer and self.optimizer_cls_and_kwargs is None and not theirs

    @property
    def makes_scheduler(self) -> bool:
        """Whether the schedule is the one that the arguments name."""
        theirs = is_overridden(self, "create_scheduler") or is_overridden(self, "create_optimizer_and_scheduler")
        return self._own_scheduler and not theirs

    @standard
    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Make the optimizer, then the schedule over `num_training_steps` optimizer steps."""
        if is_overridden(self, "create_optimizer"):
            self.create_optimizer()  # earlier releases of transformers passed nothing, and overrides take nothing
        else:
            self.create_optimizer(self.model_wrapped)
        self.create_scheduler(num_training_steps=num_training_steps)

    @standard
    def create_optimizer(self, model: Any = None) -> Any:
        """Return the optimizer of the trainable parameters; make it if there is none.

        It has two parameter groups, with and without weight decay, also where one is empty.
        """
        if self.optimizer is None:
            target = self.model if model is None else model
            if self.optimizer_cls_and_kwargs is not None:
                optimizer_class, options = self.optimizer_cls_and_kwargs
            else:
                optimizer_class, options = self.get_optimizer_cls_and_kwargs(self.args, target)
            decayed = self.get_decay_parameter_names(target)
            keeps_empty, decay = self.adapters.engine.keeps_empty_groups, self.args.weight_decay
            self.optimizer = build_optimizer(target, optimizer_class, options, decayed, decay, keeps_empty)
            self._standard_optimizer = self.optimizer
        return self.optimizer

    @standard
    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the learning-rate scheduler, one of torch; make it if there is none.

        It is of the class that transformers' `get_scheduler` returns for `lr_scheduler_type`: a LambdaLR, or a
        ReduceLROnPlateau or GreedyLR. A run steps it; a script that drives the optimizer itself calls its `step()`.
        """
        if self.lr_scheduler is None:
            target = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = self.adapters.engine.schedule(self.args, target, num_training_steps)
            if self.lr_scheduler is None:
                self.lr_scheduler = make_lr_scheduler(self.args, target, num_training_steps)
                self._standard_scheduler = self.lr_scheduler
            self._scheduler_of_run = self.lr_scheduler  # also if the user calls this: a run has another length
        return self.lr_scheduler

    @property
    def _own_optimizer(self) -> bool:
        """Whether the user has set no optimizer: there is none, or a run made it."""
        return self.optimizer is None or self.optimizer is self._optimizer_of_run

    @property
    def _own_scheduler(self) -> bool:
        return self.lr_scheduler is None or self.lr_scheduler is self._scheduler_of_run

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
        if self._own_optimizer and not is_driven and self.args.reproduce is None:
            self.optimizer = None

    def _prepare_for_run(self, model: Any, total_steps: int) -> Any:
        """Wrap the model, make the optimizer over what it then holds, compile, make the schedule."""

        def build_optimizer(wrapped: Any) -> Any:
            self.model_wrapped = wrapped
            self.create_optimizer_and_scheduler(total_steps)
            return self.optimizer

        args = self.args
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
        if args.torch_compile:
            backend = args.torch_compile_backend or "inductor"
            wrapped = torch.compile(wrapped, backend=backend, mode=args.torch_compile_mode)
        self.model_wrapped = wrapped
        if args.reproduce is None:  # in transformers, the standard training_step does it
            wrapped.train()
        return wrapped

    @staticmethod
    @standard
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: Any = None) -> tuple[type[Any], dict[str, Any]]:
        """Return the optimizer class that the arguments name, and its keyword arguments."""
        return choose_optimizer(args)

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Return the names of the parameters with weight decay: no biases, no normalisation layers."""
        return decayed_names(model)

    def get_learning_rates(self) -> list[float]:
        """Return the rate of each parameter group. Raises ConfigurationError if there is no optimizer yet."""
        return [group["lr"] for group in self._made_optimizer().param_groups]

    def get_optimizer_group(self, param: Any = None) -> Any:
        """Return the parameter group of a parameter; without one, or for one in no group, each group's parameters.

        Raises ConfigurationError if there is no optimizer yet.
        """
        groups = self._made_optimizer().param_groups
        found = (group for group in groups if any(each is param for each in group["params"]))
        return next(found, [group["params"] for group in groups])

    def _made_optimizer(self) -> Any:
        if self.optimizer is None:
            raise ConfigurationError("The Trainer has no optimizer yet; call create_optimizer() or train() first.")
        return self.optimizer


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
