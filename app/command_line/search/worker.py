"""A worker of a search: trains the trials that it is given, and asks after each evaluation whether to go on."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from attrs import frozen

from hexloop.app.command_line import ExitCode
from hexloop.app.command_line.search.workers import CHANNEL, Channel, values_in
from hexloop.app.recipe import Recipe, read_recipe
from hexloop.app.recipe.search import SearchSection
from hexloop.app.search.results import default_compute_objective
from hexloop.app.trainer.search import run_sent_trial
from hexloop.domain.errors import ConfigurationError, StorageError
from hexloop.domain.regular_files import open_lines
from hexloop.domain.search.space import SpaceTrial
from hexloop.domain.search.trial import Aim, LiveTrial, ObjectiveError
from hexloop.domain.wording import did_you_mean
from hexloop.ports.search import TrialState

OUTPUT = "output.log"
"""The file in the folder of a trial with what it prints."""

SIGNALS = ["SIGTERM"]
"""The signals at which a trial saves a checkpoint and stops, if the recipe names none."""

NEEDED = ("model", "train_dataset")

PR_SET_PDEATHSIG = 1


def serve(options: Namespace) -> ExitCode:
    """Train trials until the search ends."""
    descriptor, _, parent = os.environ.pop(CHANNEL).partition(":")
    _die_with(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process of the search passes it on
    signal.signal(signal.SIGTERM, _stop_waiting)
    channel = Channel(socket.socket(fileno=int(descriptor)))
    try:
        section = read_recipe(options.recipe, NEEDED, options, options.unknown).search
    except (ConfigurationError, StorageError) as error:
        channel.send(kind="refused", reason=str(error))
        return ExitCode.USAGE
    assert section is not None  # the process of the search has seen it
    channel.send(kind="ready")
    worker = TrialWorker(options, channel, section)
    while (message := channel.receive()) is not None:
        worker.train(message)
    return ExitCode.DONE


@frozen
class TrialWorker:
    """Trains trials of the search that a recipe describes."""

    options: Namespace
    channel: Channel
    section: SearchSection

    def train(self, described: Mapping[str, Any]) -> None:
        """Train a trial to its end, until it is pruned, or until a signal stops it; and report how it ended.

        Errors of the recipe's code are those of the trial. Those that every trial would meet end the search.
        """
        live, began = self._live(described), monotonic()
        _print_to(live.folder)
        try:
            finished = live.state is not None or self._run(live, described["resume_from"])
        except (ObjectiveError, StorageError) as error:
            self.channel.send(kind="refused", reason=str(error))
            return
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
            live.state, live.reason = TrialState.FAILED, f"{type(error).__name__}: {error}"
            finished = True
        if finished and live.state is None:
            live.state = TrialState.COMPLETE
        state = None if live.state is None else live.state.value
        self.channel.send(kind="ended", state=state, reason=live.reason, seconds=monotonic() - began)

    def _run(self, live: LiveTrial, resume_from: str | None) -> bool:
        recipe = read_recipe(
            self.options.recipe, NEEDED, self.options, self.options.unknown, values=dict(live.parameters)
        )
        if recipe.arguments.interrupts is None:
            recipe.arguments.interrupts = SIGNALS
        trainer = recipe.make_trainer(("train_dataset", "eval_dataset"))
        trainer.compute_objective = objective_of(self.section)
        # Other parameters are in the parts of the recipe, which were made with them.
        live.parameters = {name: value for name, value in live.parameters.items() if is_argument(recipe, name)}
        return run_sent_trial(trainer, live, resume_from)

    def _live(self, described: Mapping[str, Any]) -> LiveTrial:
        def decide(step: int, values: Sequence[float], diverged: bool, asks: bool) -> bool:
            self.channel.send(kind="reported", step=step, values=list(values), diverged=diverged, asks=asks)
            answer = self.channel.receive()
            if answer is None:
                raise SystemExit(ExitCode.INTERRUPTED)  # the process of the search has ended
            return bool(answer["goes_on"])

        live = LiveTrial(
            number=int(described["number"]),
            identifier=str(described["identifier"]),
            name=str(described["name"]),
            label=None,
            folder=str(described["folder"]),
            group=str(described["group"]),
            run=str(described["run"]),
            parameters=described["parameters"],
            handle=SpaceTrial(int(described["number"]), _refuse_draw, described["drawn"]),
            aim=Aim(tuple(self.section.directions), self.section.evaluation),
            decide=decide,
            reports={int(step): values_in(values) for step, values in described["reports"]},
        )
        live.take_up_end(described["pruned_at"], described["diverged_at"])
        return live


def is_argument(recipe: Recipe, name: str) -> bool:
    """Return whether a name of the space is that of an argument, and not of another key of the recipe."""
    return name.partition(".")[0] in type(recipe.arguments).__dataclass_fields__


def objective_of(section: SearchSection) -> Callable[[Mapping[str, float]], Any]:
    """Return the function that takes the objectives of a section from the metrics of an evaluation."""
    if not section.objectives:
        return default_compute_objective

    def compute(metrics: Mapping[str, float]) -> list[float]:
        return [_metric(metrics, name) for name in section.objectives]

    return compute if len(section.objectives) > 1 else lambda metrics: _metric(metrics, section.objectives[0])


def _metric(metrics: Mapping[str, float], name: str) -> float:
    for spelled in (name, f"eval_{name}"):
        if spelled in metrics:
            return metrics[spelled]
    raise ObjectiveError(
        f"You chose search.objective={name!r}, but the metrics of an evaluation are {', '.join(metrics)}; "
        f"{did_you_mean(name, metrics, 'choose one of them')}"
    )


def _refuse_draw(name: str, distribution: object) -> Any:
    raise ConfigurationError(
        f"model_init draws {name!r}, but the space of a recipe is its section search; add it there."
    )


def _print_to(folder: str) -> None:
    """Let what this process prints go to a file in the folder of a trial."""
    os.makedirs(folder, exist_ok=True)
    sys.stdout.flush(), sys.stderr.flush()
    descriptor = open_lines(os.path.join(folder, OUTPUT))
    try:
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
    finally:
        os.close(descriptor)


def _stop_waiting(number: int, frame: object) -> None:
    """End a worker that does not train: a run handles the signal by itself."""
    raise SystemExit(ExitCode.STOPPED)


def _die_with(parent: int) -> None:
    """Let the system kill this process when that of the search dies, so that no trial is trained twice at a time."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(ExitCode.INTERRUPTED)
