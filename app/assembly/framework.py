"""What a run needs of the framework in which its model is written: one interface, which each framework implements.

hexloop's own is torch, in `hexloop.app.assembly.torch`. To add one, derive from `Framework`, and pass it to the Trainer
as `framework`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pkgutil import resolve_name
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from attrs import define, field

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.learner import AveragedWeights, NoAverages, RunLearner
from hexloop.app.assembly.random_state import Flag
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.events import AnyEvent
from hexloop.domain.forecast import StepMemory
from hexloop.domain.run import Run
from hexloop.domain.state import JoinedGroup
from hexloop.ports.batches import Batches, Evaluator
from hexloop.ports.device import Device
from hexloop.ports.learner import Losses, Scheduler, WindowValues
from hexloop.ports.parallelism import ExportableModel
from hexloop.ports.process import Clock
from hexloop.ports.state import Exportable, Snapshots


class HasOptimizer(Protocol):
    """What the base class reads of the parts of a Trainer."""

    @property
    def optimizer(self) -> Any:
        """The optimizer."""


Parts = TypeVar("Parts", bound=HasOptimizer)
"""`TrainerParts`, which has a framework."""

Parts_contra = TypeVar("Parts_contra", contravariant=True)

TORCH = "hexloop.app.overrides.framework:TorchWithOverrides"
"""The framework of a Trainer that was given none."""

Observer: TypeAlias = Mapping[type[AnyEvent], Callable[[Any], None]]
"""Functions to call at events of these types."""

Sum: TypeAlias = Callable[[float], float]
"""Sums a number over processes."""


Prepare: TypeAlias = Callable[[Any], Any]
"""From a batch of the loader to that of the model."""

Inspect: TypeAlias = Callable[[Any], None]
"""Raises an error if the model cannot take a batch."""


class Counter(Protocol):
    """Counts something of the batches; the counts may stay on the device."""

    def settle(self) -> None:
        """Add all pending counts to the run's state."""


@define
class RunCounters:
    """The counters of a run; `each_batch` are called with every micro-batch.

    tokens: the one that counts tokens, if the arguments require it.
    """

    each_batch: Sequence[Any] = ()
    pending: Sequence[Counter] = field(factory=list)
    tokens: Callable[[Any], Any] | None = None

    def settle(self) -> None:
        """Add all pending counts to the run's state."""
        for counter in self.pending:
            counter.settle()


class Profiler(Protocol):
    """Records what the process and its device do in consecutive steps."""

    def start(self, warmup: int, steps: int) -> None:
        """Record `steps` steps after `warmup` steps, in which the profiler itself gets ready."""

    def step(self) -> None:
        """End a step; recording stops after the last one."""

    def finish(self) -> None:
        """Stop recording, also before the last step."""

    def write_trace(self, path: str) -> None:
        """Write what was recorded to a file on this machine, as a compressed Chrome trace in JSON."""

    def table(self) -> str:
        """Return what took longest, as lines of text."""


class FakeCopy(Protocol):
    """A copy of a model that takes no memory. objects: the model, its optimizer and its schedule."""

    @property
    def objects(self) -> Sequence[Any]:
        """The copies of the model, the optimizer and the schedule; None for what there is not."""

    def step_memory(self, parts: Any, run: Run[Any, Any], window: Sequence[Any]) -> StepMemory:
        """Return the memory of a step on a window of batches, in a run of the copy."""


class Base(Protocol):
    """The model that adapters are trained on, which a checkpoint of the adapters names."""

    def document(self) -> Mapping[str, Any]:
        """Return its description in a checkpoint: name, revision, and a digest of its weights."""

    def difference(self, saved: Mapping[str, Any]) -> str | None:
        """Return how the base that a checkpoint describes differs from this one; None if it does not."""


class WeightsPolicy(Protocol[Parts_contra]):
    """What is saved of a model, which saving, checkpoints, loggers and model cards ask."""

    def saved_as(self, args: TrainingArguments) -> str:
        """Return the name that a checkpoint notes, so that its files are understood without the model; usually ""."""

    def gathers(self, args: TrainingArguments) -> bool:
        """Return whether one process writes what is saved of the model, even if the model is sharded."""

    def base(self, parts: Parts_contra) -> Base | None:
        """Return the base that checkpoints do not hold; None if they hold the whole model. Collective."""

    @property
    def has_adapters(self) -> bool:
        """Whether the model has adapters, which are trained in place of its weights."""

    @property
    def adapters(self) -> Mapping[str, Any]:
        """The configurations of the model's adapters, by name."""

    @property
    def has_files(self) -> bool:
        """Whether there is something to write beside the weights."""

    def state(self, parts: Parts_contra) -> ExportableModel:
        """Return what a checkpoint of a run holds of the prepared model, and loads into it."""

    def write(self, parts: Parts_contra, folder: str, state_dict: Mapping[str, Any] | None = None) -> None:
        """Write the weights, or those in `state_dict`, into a folder. Collective if the model is sharded."""

    def write_beside(self, parts: Parts_contra, folder: str) -> None:
        """Write what a checkpoint has beside the weights that it holds."""

    def published(self, paths: Sequence[str]) -> list[str]:
        """Return which of a checkpoint's files of the model are published."""

    def complete_card(self, folder: str, library: str | None) -> None:
        """Complete the model card in a folder."""


METHODS = (
    *("training_step", "compute_loss", "compute_loss_context_manager", "autocast_smart_context_manager"),
    *("_prepare_inputs", "_prepare_input", "get_batch_samples", "_get_num_items_in_batch", "_clip_grad_norm"),
    *("_get_grad_norm", "prediction_step", "_wrap_model", "floating_point_ops", "_track_num_input_tokens"),
    *("_maybe_log_save_evaluate",),
)
"""The methods of a Trainer's subclass that a framework has to call."""


class Framework(ABC, Generic[Parts]):
    """What a run needs of a framework.

    An optimizer has `param_groups`, with "params" and "lr", as in torch; nothing else of it, and nothing of a model, is
    read outside of the framework. The methods that are not abstract have answers for a framework without such things.

    calls: those of `METHODS` that it calls if a subclass of the Trainer overrides them; others are refused.
    model_kind: what can be a model, for the message that refuses another object.
    """

    calls: frozenset[str] = frozenset()
    model_kind: str = "an object that is not a class"

    # The model

    @abstractmethod
    def place(self, model: Any, args: TrainingArguments, device: Device, moves: bool = True) -> Any:
        """Return the model on `device` (left where it is unless `moves`), with the memory options of the arguments."""

    @abstractmethod
    def weights(self, model: Any) -> WeightsPolicy[Parts]:
        """Return what is saved of a model without wrappers."""

    @abstractmethod
    def parameter_counts(self, parts: Parts) -> tuple[int, int]:
        """Return the number of values in the model's parameters, and of those that are trained."""

    def parameter_bytes(self, parts: Parts) -> int | None:
        """Return the bytes of the model's parameters; None if it is not known."""
        return None

    def named_parameters(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Return the parameters that may be frozen, by `requires_grad`, with their names."""
        return ()

    def refuse_unprepared(self, adapters: Any, model: Any) -> None:
        """Raise RunStateError if this process never had the model's weights and no run has prepared the model yet."""

    def is_model(self, candidate: Any) -> bool:
        """Return whether an object can be a model."""
        return not isinstance(candidate, type)

    def enter_training(self, model: Any) -> None:
        """Put a prepared model in training mode."""

    def unwrapped(self, model: Any) -> Any:
        """Return the model as the user wrote it, without wrappers of the user's own."""
        return model

    def own_class(self, model: Any) -> type[Any]:
        """Return the model's class as the user wrote it."""
        return type(model)

    def takes_item_count(self, model: Any) -> bool:
        """Return whether the model's own loss divides by the number of items that it is given."""
        return False

    def returns_loss(self, model: Any) -> bool:
        """Return whether the model returns a loss without labels."""
        return True

    def label_names(self, model: Any, has_own_loss: bool) -> list[str]:
        """Return the names of the labels among a batch's entries. has_own_loss: of the user's, or smoothed."""
        return []

    def label_smoother(self, model: Any, args: TrainingArguments) -> Any:
        """Return the loss of smoothed labels that the arguments require; None if there is none."""
        return None

    def receive(self, model: Any, args: TrainingArguments) -> None:
        """Replace layers of a model as the arguments require, once, when a Trainer receives it."""

    def share(self, args: TrainingArguments, adapters: Any, model: Any, then: Callable[[], None]) -> None:
        """Let other libraries of the framework find the run. then: is called when they do."""

    def run_began(self, run: Run[Any, Any]) -> None:
        """Show a run to other libraries of the framework."""

    def run_ended(self, run: Run[Any, Any]) -> None:
        """Show that a run has ended."""

    def patched(
        self, model: Any, args: TrainingArguments, processing_class: Any
    ) -> AbstractContextManager[Sequence[Observer]]:
        """Return a context with the changes to the model that last as long as a run; it yields their event handlers."""
        return nullcontext(())

    def kept_on_host(self, model: Any) -> Callable[[Any], None]:
        """Copy the weights to the host; return what writes them back into a model, for `auto_find_batch_size`."""
        raise NotImplementedError("auto_find_batch_size needs `kept_on_host` of the framework.")

    # The process

    def device(self, args: TrainingArguments) -> Device | None:
        """Return the device of this process; None for the one that the arguments name among those of torch."""
        return None

    def flags(self, args: TrainingArguments, device: Device) -> Sequence[Flag]:
        """Return the global flags that the arguments require."""
        return ()

    def environment(self) -> dict[str, str]:
        """Return facts on which the last bits of a result may depend."""
        return {}

    def begin(self, args: TrainingArguments) -> None:
        """Prepare the process before the seed is set. Called by the constructor of a Trainer."""

    def random_fingerprint(self, device: str) -> str:
        """Return a digest of the random streams of the process and of a device."""
        return ""

    # The data

    @abstractmethod
    def loader(
        self,
        parts: Parts,
        dataset: Any,
        batch_size: int,
        sampler_method: Callable[..., Any] | None,
        trains: bool,
        collate: Callable[[list[Any]], Any] | None,
    ) -> Any:
        """Return a loader of a data set for this process.

        batch_size: of one process, or with `split_batches` of all. sampler_method: of the user's, which returns the
        sampler that decides the order; None for hexloop's order. collate: of a user that selects the columns.
        """

    @abstractmethod
    def batches(self, parts: Parts, loader: Any, transfer: Prepare, inspect: Inspect) -> Batches[Any]:
        """Return this process's training batches. transfer, inspect: as `batch_preparation` returns them.

        Raises ConfigurationError if the data do not fit the processes.
        """

    def buckets(self, batches: Batches[Any]) -> Mapping[str, Any] | None:
        """Return by what `compile_buckets` planned the lengths of a run's batches, as JSON; None if it did not.

        most: how many lengths there may be. data: a digest of the lengths of the samples.
        """
        return None

    def packing(self, batches: Batches[Any]) -> str | None:
        """Return by what the rows of a run's batches are planned from the lengths of documents; None if they are not.

        Such batches have any number of samples.
        """
        return None

    def batch_preparation(self, parts: Parts) -> tuple[Prepare, Inspect]:
        """Return what moves a batch to the device, and what checks the first one before."""
        return lambda batch: batch, lambda _batch: None

    def collator(self, processing_class: Any) -> Callable[[list[Any]], Any]:
        """Return what makes a batch of samples if the user passed nothing."""
        return lambda samples: samples

    def kept_loaders(self) -> Any:
        """Return what keeps evaluation loaders whose workers persist; None if there are none."""
        return None

    def stop_workers(self, loader: Any) -> None:
        """Stop the workers of a loader."""

    def sample_count(self, loader: Any) -> int | None:
        """Return the number of samples of a loader's data set; None if it is not known."""
        dataset: Any = getattr(loader, "dataset", None)
        return len(dataset) if hasattr(dataset, "__len__") else None

    def batch_fingerprint(self, batch: Any) -> str | None:
        """Return a digest of a batch; None if there is none."""
        return None

    def order_of(self, parts: Parts, dataset: Any) -> Any:
        """Return the order of the training samples in the first epoch; None if hexloop does not choose it."""
        return None

    # Training

    @abstractmethod
    def choose_optimizer(self, args: TrainingArguments, model: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return the optimizer class that the arguments name, and its keyword arguments. Raises ConfigurationError.

        model: whose parameters the optimizer will update, if it is known.
        """

    @abstractmethod
    def build_optimizer(
        self,
        model: Any,
        optimizer_class: type[Any],
        options: Mapping[str, Any],
        decayed: list[str],
        weight_decay: float,
        keeps_empty: bool = False,
    ) -> Any:
        """Return an optimizer of this class for the trainable parameters of a prepared model.

        decayed: the names of the parameters with weight decay. keeps_empty: whether a parameter group may be empty.
        """

    def build_by_rules(
        self, args: TrainingArguments, model: Any, main: tuple[Any, dict[str, Any]], decayed: list[str]
    ) -> Any:
        """Return the optimizer of a prepared model with the groups of `param_groups`. See `build_optimizer`.

        main: the class of the optimizer, and its keyword arguments. Raises ConfigurationError for rules that do not
        fit.
        """
        raise ConfigurationError("param_groups needs `build_by_rules` of the framework; leave param_groups out.")

    def refuse_groups(self, parts: Parts) -> None:
        """Raise ConfigurationError, with every problem, if `param_groups` does not fit the model or the optimizer."""

    def group_lines(self, parts: Parts) -> Iterable[Mapping[str, Any]]:
        """Return what each group of `param_groups` is, for a report; nothing without that argument."""
        return ()

    def rate_groups(self, parts: Parts) -> Mapping[str, int]:
        """Return the groups of the optimizer whose rates are logged besides the first one's, by name."""
        return {}

    # Parameter groups that join during a run

    def can_join(self, scheduler: Scheduler, optimizer: Any) -> bool:
        """Return whether the optimizer may get further groups during a run, and the schedule can follow them."""
        return False

    def join_schedule(self, scheduler: Scheduler) -> None:
        """Let the groups follow the schedule that were added to its optimizer."""

    def group_options(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a group besides its rate, as plain values, from which `rejoin_group` makes it again."""
        return {}

    def rejoin_group(self, optimizer: Any, parameters: Sequence[Any], group: JoinedGroup) -> None:
        """Add a group that joined before a checkpoint. Raises CheckpointError if the optimizer refuses its options."""

    def joining_groups(self, parts: Parts, names: Sequence[str]) -> list[dict[str, Any]] | None:
        """Return the groups that parameters would have had at the start; None if the arguments do not say it."""
        return None

    def decayed_names(self, model: Any) -> list[str]:
        """Return the names of the parameters with weight decay."""
        return [name for name, _ in self.named_parameters(model)]

    @abstractmethod
    def schedule(self, args: TrainingArguments, optimizer: Any, total_steps: int) -> Any:
        """Return the schedule that the arguments name, as the Trainer's `lr_scheduler`. Raises ConfigurationError."""

    @abstractmethod
    def scheduler(self, parts: Parts, learner: RunLearner) -> Scheduler:
        """Return the Scheduler adapter for the Trainer's `lr_scheduler`."""

    @abstractmethod
    def learner(self, parts: Parts, wrapped: Any, after: Callable[[], None]) -> RunLearner:
        """Return what takes the steps of a prepared model. after: called after each optimizer step."""

    def averages(self, parts: Parts, total_steps: int) -> AveragedWeights:
        """Return the averages of a prepared model's weights, which are evaluated and saved.

        total_steps: of the run. Raises ConfigurationError for averages that cannot be computed or saved.
        """
        return NoAverages()

    @abstractmethod
    def losses(self, parts: Parts) -> Losses[Any]:
        """Return what sums the losses of steps until they are logged."""

    @abstractmethod
    def window_values(self, parts: Parts) -> WindowValues[Any]:
        """Return what collects the loss and the gradient norm of each step until they are read."""

    def compiled(self, model: Any, args: TrainingArguments) -> Any:
        """Return the model compiled, if the arguments require it."""
        return model

    def precision(self, parts: Parts, wrapped: Any) -> AbstractContextManager[Any]:
        """Return the context of the whole run in which a prepared model computes in the run's precision."""
        return nullcontext()

    def stretch(self, scheduler: Scheduler, args: TrainingArguments, total_steps: int, optimizer: Any) -> None:
        """Let the schedule of the arguments run over another number of steps."""

    def counters(
        self, parts: Parts, run: Run[Any, Any], learner: RunLearner, total: Sum, data_total: Sum
    ) -> RunCounters:
        """Return the counters of tokens and operations.

        total, data_total: sum over all processes, and over those that read different samples.
        """
        return RunCounters()

    def numbers_of(self, handles: Sequence[Any]) -> list[float]:
        """Return the values of losses, with one wait for the device."""
        return list(map(float, handles))

    def loss_figures(self, parts: Parts, losses: Losses[Any], steps: int) -> dict[str, float]:
        """Return the mean loss of a run that has ended, if it is not that of all processes."""
        return {}

    def array_later(self, value: Any, most: int | None) -> Callable[[], Any] | None:
        """Return what copies an array of the framework to the host, for numpy, as it is now; None if it is not one.

        It is called in another thread. The call itself does not wait for the device. most: of more values, take so many
        at even distances.
        """
        return None

    # Meters

    def compiling(self, device: Device, clock: Clock) -> AbstractContextManager[Callable[[], float]]:
        """Return a context; in it, a function returns the seconds that the process has spent on compiling so far."""
        return nullcontext(lambda: 0.0)

    def peak_flops(self, parts: Parts, given: float | None) -> float | None:
        """Return the floating-point operations per second that the devices of this process do at most in the run.

        None if that is not known. given: those of one device, as the user knows them.
        """
        return given

    def profiler(self) -> Profiler:
        """Return what records steps."""
        raise NotImplementedError("profile needs `profiler` of the framework.")

    # Forecasts

    def fake_copy(self, model: Any, optimizer: Any, schedule: Any, device: Device) -> FakeCopy:
        """Return a copy of a model, and of what refers to it, that takes no memory."""
        raise NotImplementedError("the framework has no `fake_copy`")

    def count_real_step(self, parts: Parts, step: Callable[[], object]) -> StepMemory:
        """Return the memory of a training step, which a call takes."""
        raise NotImplementedError("a forecast needs `count_real_step` of the framework.")

    def values_in(self, batch: Any) -> int:
        """Return how many values the arrays of a batch have."""
        return 0

    def free_on(self, device: Device) -> int | None:
        """Return the bytes of a device with memory of its own that this process can have; None if that is not known."""
        return device.memory().total or None

    def free_on_host(self) -> int | None:
        """Return the bytes of this machine that this process can still allocate; None if that is not known."""
        from hexloop.adapters.host_memory import free_memory

        return free_memory()

    def wait_for_device(self, device: Device) -> None:
        """Wait until the device has done what it was given."""

    # Evaluation

    @abstractmethod
    def evaluator(
        self,
        parts: Parts,
        loader: Any,
        loss_only: bool | None,
        ignore_keys: list[str] | None,
        prefix: str,
        keep: bool,
    ) -> Evaluator[Any]:
        """Return what evaluates over `loader`. keep: keep the predictions even if metrics are computed by batch.

        Raises ConfigurationError if `compute_metrics` cannot compute metrics in the way that the arguments require.
        """

    # Checkpoints

    @abstractmethod
    def optimizer_state(self, parts: Parts) -> Exportable:
        """Return what exports and loads the optimizer."""

    def kept_state(self, parts: Parts) -> Mapping[str, Exportable]:
        """Return what a copy in memory holds of sharded state, by the names of a checkpoint's components.

        Each process exports what it holds itself. Empty if every process holds all of the state.
        """
        return {}

    @abstractmethod
    def snapshots(self, parts: Parts) -> Snapshots:
        """Return what copies the state of a run at once, to be written in the background."""

    def group_sizes(self, parts: Parts) -> Sequence[int]:
        """Return how many of the model's parameters are in each of the optimizer's groups."""
        return [len(group["params"]) for group in parts.optimizer.param_groups]

    def names_without_decay(self, parts: Parts) -> list[str]:
        """Return the trainable parameters to which weight decay does not apply by default."""
        return []

    def parameter_shapes(self, parts: Parts) -> list[list[Any]]:
        """Return the name, the shape and the dtype of each parameter, all of them JSON; compared between processes."""
        return []


def uncalled(framework: Framework[Any], is_overridden: Callable[[str], bool]) -> list[str]:
    """Return a problem for each overridden method of the Trainer that the framework would not call."""
    return [
        f"{name} is overridden, and the framework {type(framework).__name__} does not call it; remove the override, or "
        "let the framework call it and name it in `calls`."
        for name in METHODS
        if name not in framework.calls and is_overridden(name)
    ]


@cache
def torch_framework() -> Framework[Any]:
    """Return torch, which is imported by the first call."""
    made: Framework[Any] = resolve_name(TORCH)()
    return made
