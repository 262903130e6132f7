"""The model, the optimizer and the schedule of a Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from attrs import evolve

from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.trainable.torch.optimizer_table import choose_optimizer
from hexloop.adapters.trainable.torch.optimizers import decayed_names, make_optimizer
from hexloop.app.arguments import TrainingArguments
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.app.training.columns import returns_loss_unasked, takes_any_keyword
from hexloop.app.training.hooks import is_overridden, standard
from hexloop.app.training.learning_rates import make_learning_rates
from hexloop.app.training.placement import place_model
from hexloop.app.training.sharded import is_sharded
from hexloop.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from hexloop.app.trainer.trainer import Trainer


class Making(TrainerAttributes):
    """How a Trainer makes what it trains, and with what."""

    def call_model_init(self, trial: Any = None) -> Any:
        """A fresh model from `model_init`, which may take the trial of a search."""
        assert self.model_init is not None
        takes_trial = self.model_init.__code__.co_argcount > 0 if hasattr(self.model_init, "__code__") else False
        with self.adapters.engine.model_init(self.args):
            model = self.model_init(trial) if takes_trial else self.model_init()
        if model is None:
            raise ConfigurationError(["model_init returned None; let it return the model."])
        return model

    def note_model(self) -> None:
        """Find out of the model what subclasses read, and may write after the constructor."""
        devices = {each for each in (getattr(self.model, "hf_device_map", None) or {}).values() if each != "disk"}
        self.is_model_parallel = len(devices - {"cpu"}) > 1
        if self.is_model_parallel or getattr(self.model, "is_loaded_in_8bit", False):
            self._compute_on_one_device()
        asked = self.args.place_model_on_device
        self.place_model_on_device = not devices if asked is None else asked
        self.model_accepts_loss_kwargs = takes_any_keyword(self.model)
        self.can_return_loss = returns_loss_unasked(self.model)

    def _compute_on_one_device(self) -> None:
        """Do not copy a model to all GPUs that lies on several already, or whose weights cannot be copied."""
        if self.adapters.parallelism.capabilities.several_devices:
            self.adapters.parallelism = SingleProcess()
            self.args.surroundings = evolve(self.args.surroundings, n_gpu=1)

    def place_model(self, moves: bool = True) -> Any:
        """The model on its device, with what the arguments ask of its memory. One that is spread stays as it lies."""
        moves = moves and self.place_model_on_device and not is_sharded(cast("Trainer", self))
        return place_model(self.model, self.args, self.adapters.device, moves)

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
            self.create_optimizer()  # the reference's earlier releases passed nothing, and overrides take nothing
        else:
            self.create_optimizer(self.model_wrapped)
        self.create_scheduler(num_training_steps=num_training_steps)

    @standard
    def create_optimizer(self, model: Any = None) -> Any:
        """The optimizer of the trainable parameters, made now where there is none."""
        if self.optimizer is None:
            target = self.model if model is None else model
            if self.optimizer_cls_and_kwargs is not None:
                optimizer_class, options = self.optimizer_cls_and_kwargs
            else:
                optimizer_class, options = self.get_optimizer_cls_and_kwargs(self.args, target)
            decayed = self.get_decay_parameter_names(target)
            self.optimizer = make_optimizer(target, optimizer_class, options, decayed, self.args.weight_decay)
            self._standard_optimizer = self.optimizer
        return self.optimizer

    @standard
    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The learning-rate schedule, made now where there is none."""
        if self.lr_scheduler is None:
            target = self.optimizer if optimizer is None else optimizer
            own = self.adapters.engine.schedule(self.args, target, num_training_steps)
            self.lr_scheduler = make_learning_rates(self.args, target, num_training_steps) if own is None else own
            self._scheduler_of_run = self.lr_scheduler  # also where the user asks: a run has another length
        return self.lr_scheduler

    @property
    def _own_optimizer(self) -> bool:
        """Whether the user has set no optimizer: there is none, or a run made it."""
        return self.optimizer is None or self.optimizer is self._optimizer_of_run

    @property
    def _own_scheduler(self) -> bool:
        return self.lr_scheduler is None or self.lr_scheduler is self._scheduler_of_run

    @contextmanager
    def making_own_optimizer(self) -> Iterator[None]:
        """What the block makes of optimizer and schedule is the run's own, but for what the user has set."""
        self.forget_own_optimizer()
        makes_optimizer, makes_scheduler = self.optimizer is None, self.lr_scheduler is None
        try:
            yield
        finally:
            if makes_optimizer:
                self._optimizer_of_run = self.optimizer
            if makes_scheduler:
                self._scheduler_of_run = self.lr_scheduler

    def forget_own_optimizer(self) -> None:
        """Drop the optimizer and schedule that an earlier run made; the user's own stay, and what they drive."""
        if self._own_scheduler:
            self.lr_scheduler = None
        if self._own_optimizer and getattr(self.lr_scheduler, "optimizer", None) is not self.optimizer:
            self.optimizer = None

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: Any = None) -> tuple[type[Any], dict[str, Any]]:
        """The optimizer class that the arguments name, and its keyword arguments."""
        return choose_optimizer(
            str(getattr(args.optim, "value", args.optim)),
            args.learning_rate,
            (args.adam_beta1, args.adam_beta2),
            args.adam_epsilon,
            args.optim_args,
            args.device.type,
            model,
        )

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """The names of the parameters that weight decay applies to: no bias, no normalisation."""
        return decayed_names(model)

    def get_num_trainable_parameters(self) -> int:
        """How many numbers are trained."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return sum(map(self.adapters.engine.element_count, trained))

    def get_learning_rates(self) -> list[float]:
        """The rate of each parameter group. Raises ConfigurationError where there is no optimizer yet."""
        return [group["lr"] for group in self._made_optimizer().param_groups]

    def get_optimizer_group(self, param: Any = None) -> Any:
        """The parameter group that a parameter is in, None where it is in none; without one, each group's parameters.

        Raises ConfigurationError where there is no optimizer yet.
        """
        groups = self._made_optimizer().param_groups
        if param is None:
            return [group["params"] for group in groups]
        return next((group for group in groups if any(each is param for each in group["params"])), None)

    def _made_optimizer(self) -> Any:
        if self.optimizer is None:
            raise ConfigurationError(["The Trainer has no optimizer yet; call create_optimizer() or train() first."])
        return self.optimizer
