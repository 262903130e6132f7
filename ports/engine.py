"""Everything that the app asks of an engine besides the Parallelism port, as one value.

An engine decides how a model is spread over processes and how its update happens. Its adapter of the Parallelism port
does that work during a run. An `Engine` states what has to be known around it: its options and their checks, the number
format that it applies itself, a schedule of its own. The defaults suit an engine that has none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Protocol, TypeVar

from attrs import frozen

from hexloop.ports.device import Device
from hexloop.ports.mesh import Dimensions
from hexloop.ports.parallelism import Parallelism

Arguments = TypeVar("Arguments")
Loss = TypeVar("Loss")


class Parameter(Protocol):
    """A trainable array of a model."""

    def numel(self) -> int:
        """Return the number of elements."""


@frozen
class RunFacts:
    """What is known of a run before its first step.

    Args:
        model: as the user passed it.
        total_steps: optimizer steps.
        standard_optimizer: whether the arguments choose the optimizer; False if the user passed an object or overrode
            the method that creates it.
        standard_schedule: whether the arguments choose the schedule; False as for the optimizer.
    """

    model: object
    total_steps: int
    standard_optimizer: bool = True
    standard_schedule: bool = True


@frozen
class Engine(Generic[Arguments, Loss]):
    """One engine. Each function receives the training arguments and is called whenever its answer is needed.

    Args:
        name: shown in messages.
        make: creates the adapter; raises ConfigurationError listing every problem with the engine's options.
        begin: called before the run has a device; raises ConfigurationError if the engine cannot be used.
        mesh: the dimensions along which it arranges the processes; by default each holds all of the model.
        problems: what is wrong with its options, as sentences, from the arguments alone.
        check: what does not fit the model, the data or the Trainer, as sentences; called before the model is prepared.
        precision: the name of the number format that the engine applies itself; None leaves that to the Precision port.
        schedule: the learning-rate schedule that the engine's own options define, from the optimizer and the number of
            optimizer steps; None leaves it to the arguments.
        model_init: a context for the user's function that creates the model. The processes have met before.
        sharded_init: a context in which every module is spread as it is created, if the engine can do that. Its second
            argument waits until the processes have met; it is called before anything collective.
        consolidates: whether one process is to write the whole weights although they are spread.
        element_count: the number of elements of a whole parameter, of which this process may hold a part.
        unprepared: why a parameter cannot be used before a run has prepared its model; None if it can be.
        exchanges_host_tensors: whether processes also exchange tensors in host memory while they train on other
            devices, such as the norms of offloaded gradients.
        keeps_empty_groups: whether its optimizer may have a parameter group without parameters.
    """

    name: str
    make: Callable[[Arguments, Device], Parallelism[Loss]]
    begin: Callable[[Arguments], None] = lambda _: None
    mesh: Callable[[Arguments], Dimensions] | None = None
    problems: Callable[[Arguments], Sequence[str]] = lambda _: ()
    check: Callable[[Arguments, RunFacts], Sequence[str]] = lambda *_: ()
    precision: Callable[[Arguments], str | None] = lambda _: None
    schedule: Callable[[Arguments, object, int], object | None] = lambda *_: None
    model_init: Callable[[Arguments], AbstractContextManager[None]] = lambda _: nullcontext()
    sharded_init: Callable[[Arguments, Callable[[], object]], AbstractContextManager[None]] = lambda *_: nullcontext()
    consolidates: Callable[[Arguments], bool] = lambda _: False
    element_count: Callable[[Parameter], int] = lambda parameter: parameter.numel()
    unprepared: Callable[[object], str | None] = lambda _: None
    exchanges_host_tensors: bool = False
    keeps_empty_groups: bool = True


@frozen
class EngineRow(Generic[Arguments]):
    """A row of the table of engines: an engine that is imported when it is chosen.

    Args:
        name: the name of the engine.
        requested: whether the arguments or the launcher's environment choose it.
        target: where its `Engine` is found, as "package.module:attribute".
        least_processes: it is skipped in smaller runs.
        options: the arguments that have no effect unless it is requested.
    """

    name: str
    requested: Callable[[Arguments], bool]
    target: str
    least_processes: int = 1
    options: tuple[str, ...] = ()
