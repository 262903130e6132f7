"""The attributes of a Trainer: what the user passed or assigned, what the last run left, and how each is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from attrs import fields

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import Adapters, choose_adapters, disable_replication
from hexloop.app.assembly.learner import Averages
from hexloop.app.assembly.outboxes import state_folder
from hexloop.app.assembly.parts import LossTap, PreparationTime, TrainerParts
from hexloop.app.assembly.publishing import HubPublisher
from hexloop.app.assembly.storage import WorkingFolder
from hexloop.app.callbacks import CallbackHandler, EventDispatcher, TrainerControl, TrainerState
from hexloop.app.callbacks.flow import all_callbacks
from hexloop.app.hooks import Hooks, is_overridden
from hexloop.app.notices import Notices, notices_in_force
from hexloop.app.run import publishing
from hexloop.app.run.checkpoint_compatibility import AUTO, absolute_name, likely_checkpoint
from hexloop.app.run.memory_metrics import MemoryStages, memory_stages_for
from hexloop.app.run.messages import resumed_from
from hexloop.app.run.quantized_models import cannot_be_replicated, stays_on_its_device
from hexloop.app.run.session import RunOutcome, Session
from hexloop.app.trainer.attribute_kinds import made
from hexloop.domain.errors import RunStateError
from hexloop.domain.redaction import redact
from hexloop.domain.requests import Requests
from hexloop.domain.search.trial import LiveTrial


def _none(_: Any) -> None:
    return None


def _of_model(name: str) -> made[bool]:
    """Return an attribute that depends on the model, for a class that replaces the constructor."""
    together = "is_model_parallel", "place_model_on_device", "model_accepts_loss_kwargs", "can_return_loss"

    def make(trainer: TrainerAttributes) -> bool:
        assigned = {each: vars(trainer)[each] for each in together if each in vars(trainer)}
        trainer.note_model()
        vars(trainer).update(assigned)
        return bool(vars(trainer)[name])

    return made(make)


class TrainerAttributes:
    """What subclasses and callbacks read and write, and what the other classes of the Trainer share."""

    args: TrainingArguments

    # What was passed to the constructor

    model: Any = made[Any](_none)
    model_init = made[Callable[..., Any] | None](_none)
    train_dataset = made[Any](_none)
    eval_dataset = made[Any](_none)
    processing_class = made[Any](_none)
    optimizer = made[Any](_none)
    lr_scheduler = made[Any](_none)
    optimizer_cls_and_kwargs = made[tuple[type[Any], dict[str, Any]] | None](_none)
    compute_loss_func = made[Callable[..., Any] | None](_none)
    compute_metrics = made[Callable[..., dict[str, Any]] | None](_none)
    preprocess_logits_for_metrics = made[Callable[[Any, Any], Any] | None](_none)

    @made
    def data_collator(self) -> Callable[[list[Any]], Any]:
        """What makes a batch of a list of samples."""
        return self.adapters.framework.collator(self.processing_class)

    @made
    def adapters(self) -> Adapters:
        """The adapters of the run: those that were passed, and those that the arguments choose."""
        if self.args.world_size is None:  # trl's PPOConfig declares a field of this name, which its trainer sets later
            self.args.world_size = self.args.distributed_environment.world_size
        return choose_adapters(self.args, vars(self).get("_passed", {}), self._started_in)

    # What follows from the model

    @made
    def model_wrapped(self) -> Any:
        """The model as the engine of the run prepared it; the model itself if nothing wraps it."""
        return self.model

    is_model_parallel = _of_model("is_model_parallel")
    """Whether the model is spread over several devices of this process."""

    place_model_on_device = _of_model("place_model_on_device")
    """Whether the Trainer moves the model; a subclass may assign it after the constructor."""

    model_accepts_loss_kwargs = _of_model("model_accepts_loss_kwargs")
    """Whether forward takes the number of items; a subclass may assign it after the constructor."""

    can_return_loss = _of_model("can_return_loss")
    """Whether forward returns a loss without labels."""

    def note_model(self) -> None:
        """Set the attributes that depend on the model; subclasses may assign others after the constructor."""
        framework = self.adapters.framework
        model = framework.unwrapped(self.model)
        devices = {each for each in (getattr(model, "hf_device_map", None) or {}).values() if each != "disk"}
        parallelized = getattr(model, "is_parallelizable", False) and getattr(model, "model_parallel", False)
        self.is_model_parallel = len(devices - {"cpu"}) > 1 or bool(parallelized)
        if self.is_model_parallel or cannot_be_replicated(model):
            disable_replication(self.adapters, self.args)
        config: Any = getattr(model, "config", None)
        if hasattr(config, "save_pretrained"):
            config.use_cache = self.args.use_cache
        asked = self.args.place_model_on_device
        self.place_model_on_device = (not devices if asked is None else asked) and not stays_on_its_device(model)
        self.model_accepts_loss_kwargs = framework.takes_item_count(self.model)
        self.can_return_loss = framework.returns_loss(self.model)

    @made
    def label_names(self) -> list[str]:
        """The names of the labels among the inputs."""
        return self.args.label_names or self.adapters.framework.label_names(self.model, False)

    @made
    def main_input_name(self) -> str:
        """The name of the input whose items are counted."""
        return str(getattr(self.adapters.framework.unwrapped(self.model), "main_input_name", "input_ids"))

    loss_is_scaled_for_ga: bool | None = None
    """Whether an overridden `compute_loss` divides by `num_items_in_batch`; None: if the model's own loss does."""

    @property
    def label_smoother(self) -> Any:
        """The loss of smoothed labels, None if labels are not smoothed; a subclass may assign another one or None.

        It is called with the outputs of the model and the labels, and may take `shift_labels` and
        `num_items_in_batch`.
        """
        if "_own_smoother" in vars(self):
            return self._own_smoother
        return self.adapters.framework.label_smoother(self.model, self.args)

    @label_smoother.setter
    def label_smoother(self, smoother: Any) -> None:
        self._own_smoother = smoother

    log_loss_components: Mapping[str, Callable[..., Any] | str] = MappingProxyType({})
    """What is logged beside the loss, by name: the key of an output of the model, or a function.

    A function receives the outputs and the inputs of a batch, as far as it takes them, and returns the mean over the
    batch as a scalar. Assign a mapping before training.
    """

    @made
    def _loss_tap(self) -> LossTap:
        return LossTap()

    @made
    def _averages(self) -> Averages:
        """The averages of weights that the live or the last run evaluates and saves."""
        return Averages()

    # State and callbacks

    @made
    def control(self) -> TrainerControl:
        """The flags by which callbacks steer a run."""
        return TrainerControl()

    @made
    def state(self) -> TrainerState:
        """The state of the live or last run."""
        first = self.is_local_process_zero(), self.is_world_process_zero()
        return TrainerState(is_local_process_zero=first[0], is_world_process_zero=first[1])

    @made
    def callback_handler(self) -> CallbackHandler:
        """The callbacks."""
        handled = self.model, self.processing_class, self.optimizer, self.lr_scheduler
        return CallbackHandler(all_callbacks(self.args, (), False), *handled)

    @made
    def _dispatcher(self) -> EventDispatcher:
        return EventDispatcher(self.callback_handler, self.args, self.state, self.control)

    @made
    def _notices(self) -> Notices:
        """How what transformers does with a warning is handled: as it was in force when the Trainer was created."""
        return notices_in_force()

    @made
    def _started_in(self) -> WorkingFolder:
        """The working folder in which the Trainer was made, from which the paths of its arguments are resolved."""
        return WorkingFolder()

    @made
    def _memory(self) -> MemoryStages:
        return memory_stages_for(self.args, self.adapters.device)

    @made
    def _requests(self) -> Requests:
        return Requests()

    @made
    def _preparation(self) -> PreparationTime:
        return PreparationTime()

    @made
    def _kept_loaders(self) -> Any:
        """Evaluation loaders whose workers persist."""
        return self.adapters.framework.kept_loaders()

    _signature_columns: list[str] | None = None
    """The columns that are kept; None until `_set_signature_columns_if_needed` found them."""

    _own_hub_model_id: str | None = None
    _own_publisher: HubPublisher | None = None

    # Runs

    outcome: RunOutcome | None = None
    """How the last run ended; None while one is live, and after one that raised."""

    ignore_keys_for_eval: list[str] | None = None

    _trial: Any = None
    """The trial of a hyperparameter search, as `train` received it; None outside of one."""

    _live_trial: LiveTrial | None = None
    """The trial that is being run by a search; None outside of one."""

    _renews_model: bool = False
    """Whether the next run makes a new model, also if the present one was not trained: it is that of a trial."""

    _session: Session | None = None
    """The live run; None between runs."""

    _is_active: bool = False
    """Whether a run is being constructed or is live."""

    _is_in_own_train: bool = False

    _optimizer_of_run: Any = None
    _scheduler_of_run: Any = None
    """What the last run made for itself; the next run makes new ones."""

    _standard_optimizer: Any = None
    _standard_scheduler: Any = None
    """What the standard `create_optimizer` and `create_scheduler` made from the arguments."""

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
    def makes_optimizer(self) -> bool:
        """Whether the optimizer is the one that the arguments name."""
        theirs = is_overridden(self, "create_optimizer") or is_overridden(self, "create_optimizer_and_scheduler")
        return self._own_optimizer and self.optimizer_cls_and_kwargs is None and not theirs

    @property
    def makes_scheduler(self) -> bool:
        """Whether the schedule is the one that the arguments name."""
        theirs = is_overridden(self, "create_scheduler") or is_overridden(self, "create_optimizer_and_scheduler")
        return self._own_scheduler and not theirs

    @property
    def _own_optimizer(self) -> bool:
        """Whether the user has set no optimizer: there is none, or a run made it."""
        return self.optimizer is None or self.optimizer is self._optimizer_of_run

    @property
    def _own_scheduler(self) -> bool:
        return self.lr_scheduler is None or self.lr_scheduler is self._scheduler_of_run

    def is_world_process_zero(self) -> bool:
        """Return whether this process is the first of the run."""
        return self.adapters.mesh.writes

    def is_local_process_zero(self) -> bool:
        """Return whether this process is the first of its machine."""
        return self.args.local_process_index == 0

    def __repr__(self) -> str:
        """Return the class, the model, the data and the step of the run, as far as they are known; nothing is made."""
        known, said = vars(self), []
        if known.get("model") is not None:
            said.append(f"model={type(known['model']).__name__}")
        for name in ("train_dataset", "eval_dataset"):
            if known.get(name) is not None:
                said.append(f"{name}={_sized(known[name])}")
        if "args" in known:
            said.append(f"output_dir={redact(repr(self.args.output_dir))}")
        if "adapters" in known:
            said.append(f"device={self.adapters.device.name!r}")
        state = known.get("state")
        if state is not None and state.max_steps:
            said.append(f"step={state.global_step} of {state.max_steps}")
        return f"<{type(self).__name__}: {', '.join(said) or 'not constructed'}>"

    def _live(self, method: str) -> Session:
        if self._session is None:
            raise RunStateError(f"{method} needs a live run; call train() or stream() instead.")
        return self._session

    def _collect_parts(self) -> TrainerParts:
        """Collect the attributes and hooks as they are now."""
        live, own_gather, accelerator = self._session, self._own_gather_function, self._accelerator
        return TrainerParts(
            hooks=Hooks.of(self),
            run=None if live is None else live.run,
            modes=None if live is None else live.learner.modes,
            backward=self._assigned("backward"),
            gathers_all_rows=None not in (own_gather, accelerator) and own_gather == accelerator.gather,
            **{name: getattr(self, source) for name, source in _SOURCES.items()},
        )

    @property
    def hub_model_id(self) -> str | None:
        """The name of the model's repository: the assigned one, that of the hub, or that of the arguments."""
        return self._own_hub_model_id or self.args.hub_model_id

    @hub_model_id.setter
    def hub_model_id(self, name: str | None) -> None:
        self._own_hub_model_id = name

    @property
    def _publisher(self) -> HubPublisher:
        """What publishes on the hub of `adapters`, through the outbox of the output folder."""
        storage, hub = self.adapters.storage, self.adapters.hub
        folder = storage.capabilities.local_folder or state_folder(self._folder)
        known = self._own_publisher
        if known is None or known.folder != folder:
            known = self._own_publisher = HubPublisher(hub, folder, storage)
        known.hub, known.storage = hub, storage
        chosen = publishing.repository_of(self.args)
        names = {self.hub_model_id or chosen, chosen}
        known.objection = lambda push: publishing.objection_to(push, hub.address, names, known.full_name)
        return known

    # Paths

    @property
    def _folder(self) -> str:
        """The absolute path or the URL of the output folder, wherever the program is now."""
        return self._started_in.locate(str(self.args.output_dir))

    def _received(self, path: str | os.PathLike[str] | None) -> str:
        """Return a path that a method received, by default the output folder.

        It is spelled as the user wrote it while it leads to the same place, and else absolute. `output_dir`, as it is
        written, and what begins with it, mean the output folder also after the program has changed its working folder.
        """
        folder = str(self.args.output_dir)
        return self._started_in.receive(os.fspath(path) if path else folder, folder)

    def _location_of(self, resume_from: str | bool | None) -> str | None:
        """Return the location of the checkpoint that a run would resume from; None if there is none."""
        if not resume_from:
            return None
        storage = self.adapters.storage
        return resumed_from(storage, resume_from, likely_checkpoint(storage, resume_from)[1])

    def _named_location(self, resume_from: str | bool | None) -> str | bool | None:
        """Return what a run is to resume from, with the path of a checkpoint made absolute."""
        if not resume_from or resume_from is True or resume_from == AUTO:
            return resume_from
        return absolute_name(self.adapters.storage, self._received(resume_from))

    # The accelerator

    _accelerator: Any = None
    """What `accelerator` returns; None until it is needed."""

    _own_gather_function: Callable[..., Any] | None = None

    def _assigned(self, name: str) -> Any:
        """Return a method that was assigned to the accelerator, or that of an assigned one; None if there is none."""
        accelerator = self._accelerator
        if accelerator is None:
            return None
        from hexloop.app.trainer.accelerator import Accelerator

        return accelerator.assigned(name) if isinstance(accelerator, Accelerator) else getattr(accelerator, name, None)


def _sized(dataset: Any) -> str:
    """Return the class of a data set, and its length if it has one; of several by name, each."""
    if isinstance(dataset, dict):
        return f"{{{', '.join(f'{name!r}: {_sized(each)}' for name, each in dataset.items())}}}"
    try:
        return f"{type(dataset).__name__} of {len(dataset):,}"
    except Exception:  # a user's class may raise anything
        return type(dataset).__name__


_SOURCES = {
    each.name: f"_{each.name}" if hasattr(TrainerAttributes, f"_{each.name}") else each.name
    for each in fields(TrainerParts)
    if each.name not in ("hooks", "run", "modes", "backward", "gathers_all_rows")
}
"""The attribute in which each of the other fields of `TrainerParts` is found."""


def folder_of(trainer: TrainerAttributes) -> str:
    """Return the absolute path or the URL of a Trainer's output folder."""
    return trainer._folder


def session_of(trainer: TrainerAttributes) -> Session | None:
    """Return the live run of a Trainer and what belongs to it; None between runs."""
    return trainer._session
