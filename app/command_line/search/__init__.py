"""`hexloop search`: train what a recipe describes with the values of a search, in one process or several."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import choose_storage, system_clock
from hexloop.app.assembly.searches import SearchOptions, choose_backend
from hexloop.app.assembly.storage import as_location, is_elsewhere, joined
from hexloop.app.command_line import ExitCode
from hexloop.app.command_line.options import command_text, without_options
from hexloop.app.command_line.search.workers import CHANNEL, WorkerPool, command_of_worker
from hexloop.app.devices import devices_of_worker
from hexloop.app.printing import print_lines, print_text
from hexloop.app.recipe import Recipe, read_recipe
from hexloop.app.recipe.search import SearchSection, space_of
from hexloop.app.search.checkpoints import TrialCheckpoints
from hexloop.app.search.results import default_compute_objective
from hexloop.app.search.searching import Leader, SearchCall, SearchPlace
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.folders import Folder
from hexloop.domain.run_folder import OWN
from hexloop.domain.search.records import DEFINITION, MINIMIZE, RecordedTrial
from hexloop.domain.search.selection import best_trials
from hexloop.domain.search.trial import Aim
from hexloop.ports.search import TrialState
from hexloop.ports.storage import Storage

NEEDED = ("model", "train_dataset")

DEFAULT_TRIALS = 20

MOST_SHOWN = 8
"""How many of the best trials of several objectives are printed."""


def run(options: Namespace) -> int:
    """Run the search, and print at the end what is best, where it is, and what to do next."""
    if CHANNEL in os.environ:
        from hexloop.app.command_line.search.worker import serve

        return serve(options)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigurationError(
            "hexloop search trains each trial in one process, but several were launched; start it without a launcher "
            "and with --parallel, or call Trainer.hyperparameter_search in a script that is launched."
        )
    recipe = read_recipe(options.recipe, NEEDED, options, options.unknown, partial(_problems, options))
    section = recipe.search
    if section is None:
        raise ConfigurationError(
            f"{options.recipe}: search is missing; add what is to be tried, as in "
            "'search: {space: {learning_rate: {low: 1e-5, high: 1e-2, log: true}}}'."
        )
    call = _call(section, options)
    place = _place(recipe, options)
    if options.check:
        return _check(section, call, place)
    leader = Leader(place, call)
    try:
        leader.begin()
        stopped = _train(leader, section, options)
        return _conclude(leader, section, options, stopped)
    finally:
        leader.close()


def _problems(options: Namespace, arguments: TrainingArguments, given: Collection[str]) -> Iterator[str]:
    """Return what else is wrong with a recipe that is to be searched."""
    folder = str(arguments.output_dir)
    if "eval_dataset" not in given:
        yield "The recipe has no eval_dataset, but trials are compared by their evaluations; add one."
    if is_elsewhere(folder):
        yield (
            f"You chose output_dir={folder!r}, but the record of a search is in a folder of this machine; choose one, "
            "or call Trainer.hyperparameter_search."
        )
        return
    exists = os.path.lexists(Path(as_location(folder), DEFINITION))
    if options.resume and not exists:
        yield f"--resume: There is no search in {folder}; leave --resume out to start one, or set output_dir."
    if exists and not options.resume and not options.check:
        yield (
            f"There is a search in {folder} already; continue it with --resume, or choose another output_dir for a new "
            "one."
        )


def _call(section: SearchSection, options: Namespace) -> SearchCall:
    """Return what is searched. Raises ConfigurationError for a backend that cannot be used."""
    name = section.backend or ("optuna" if find_spec("optuna") is not None else "random")
    backend = choose_backend(name)
    if backend.service is not None:
        raise ConfigurationError(
            f"You chose the search backend {name}, which runs trials in processes of its own; choose optuna, random or "
            "grid with --parallel, or call Trainer.hyperparameter_search in a script."
        )
    several = len(section.directions) > 1
    if several and not backend.several:
        raise ConfigurationError(
            f"You chose {len(section.directions)} objectives, but the search backend {name} has one; choose optuna."
        )
    given = {key: make() for key, make in section.options.items()}
    given |= {key: part() for key, part in (("sampler", section.sampler), ("pruner", section.pruner)) if part}
    return SearchCall(
        backend=backend,
        space=space_of(section.space),
        compute_objective=default_compute_objective,  # the workers take the objective
        declared={each.name: each.as_data() for each in section.space},
        trials=options.trials or section.trials or (None if name == "grid" else DEFAULT_TRIALS),
        name=None,
        aim=Aim(tuple(section.directions), section.evaluation),
        several=several,
        seed=section.seed,
        resume=bool(options.resume),
        timeout=section.timeout,
        catch=(Exception,),
        collects=False,
        keep=section.keep_trials,
        options=given,
        metrics=section.objectives or None,
    )


def _place(recipe: Recipe, options: Namespace) -> SearchPlace:
    """Return where the search is, and the check of a trial's values: its recipe must be valid."""
    folder = str(recipe.arguments.output_dir)

    def storage(name: str) -> Storage:
        return choose_storage(recipe.arguments, folder=joined(as_location(folder), name))

    def check(parameters: Mapping[str, Any]) -> None:
        read_recipe(options.recipe, NEEDED, options, options.unknown, values=parameters)

    return SearchPlace(
        folder=Folder(as_location(folder)),
        location=lambda name: joined(as_location(folder), name),
        group=str(recipe.arguments.run_name or folder),
        clock=system_clock(),
        checkpoints=TrialCheckpoints(storage),
        check=check,
    )


def _check(section: SearchSection, call: SearchCall, place: SearchPlace) -> ExitCode:
    """Print what would be tried, after making the first trial's recipe."""
    options = SearchOptions(call.space, call.aim.directions, call.trials, call.seed, call.options)
    search = call.backend.make(options)
    try:
        first = search.ask()
    finally:
        search.close()
    parameters = {} if first is None else dict(first.parameters)
    place.check(parameters)
    judged = [
        f"{name}, {'less' if direction == MINIMIZE else 'more'} is better"
        for name, direction in zip(section.objectives or ("the loss",), section.directions, strict=False)
    ]
    print_lines(
        f"{call.trials or 'All'} trials by {call.backend.name}, compared by {'; '.join(judged)}; they go to "
        f"{place.folder.location()}.",
        *(f"  {name}: {_described(data)}" for name, data in (call.declared or {}).items()),
        f"The first trial would have {_listed(parameters)}.",
    )
    return ExitCode.DONE


def _train(leader: Leader, section: SearchSection, options: Namespace) -> bool:
    """Train the trials in workers; return whether a signal stopped the search."""
    from hexloop.app.command_line.launch.plan import cores
    from hexloop.app.command_line.search.coordinator import Coordinator
    from hexloop.app.command_line.search.progress import SearchProgress

    number = int(options.parallel)
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, cores() // number))}
    environments = [{**threads, **devices_of_worker(worker, number)} for worker in range(number)]
    own = Path(leader.host.folder.location(), OWN)
    own.mkdir(parents=True, exist_ok=True)
    pool = WorkerPool(command_of_worker(options.argv), environments, str(own / "workers.log"))
    progress = SearchProgress([each == MINIMIZE for each in section.directions])
    for each in leader.record.trials.values():
        progress.count(each)
    coordinator = Coordinator(leader, pool, progress)
    try:
        coordinator.run()
    finally:
        pool.close()
    return coordinator.stopped_by is not None


def _conclude(leader: Leader, section: SearchSection, options: Namespace, stopped: bool) -> ExitCode:
    """Print how the search ended, and return the exit code."""
    record = leader.record
    folder = os.path.relpath(leader.host.folder.location())
    trials = list(record.trials.values())
    best = best_trials(trials, record.definition.directions)
    print_lines(_summary(trials, record.definition.trials, stopped))
    names = section.objectives or ("objective",) * len(section.directions)
    for each in best[:MOST_SHOWN]:
        values = ", ".join(f"{name} {value:.6g}" for name, value in zip(names, each.values or (), strict=False))
        where = f"; its checkpoint is {os.path.join(folder, each.checkpoint)}" if each.checkpoint is not None else ""
        print_lines(f"The best trial is {each.number} with {values}: {_listed(each.parameters)}{where}.")
    if options.report:
        _write_report(folder)
    look = f"look at {os.path.join(folder, 'report.html')}" if options.report else f"look with: hexloop report {folder}"
    if stopped:
        again = command_text([*without_options(options.argv, ("resume",)), "--resume"])
        print_lines(f"The search is in {folder}; {look}; resume with: {again}")
        return ExitCode.STOPPED
    if not best:
        reasons = [each.reason for each in trials if each.reason]
        raise RunStateError(
            f"No trial of the search in {folder} was complete, so there is no best one"
            f"{f' (trial {trials[0].number}: {reasons[0]})' if reasons else ''}; {folder}/run-*/output.log have what "
            "the trials printed."
        )
    again = shlex.join(["hexloop", "train", options.recipe, "--trial", folder, "--output_dir", f"{folder}-best"])
    print_lines(f"The search is in {folder}; {look}; train the best one again with: {again}")
    return ExitCode.DONE


def _summary(trials: Sequence[RecordedTrial], wanted: int | None, stopped: bool) -> str:
    counts = {state.value: len([each for each in trials if each.state is state]) for state in TrialState}
    listed = ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none"
    ended = sum(counts.values())
    of_wanted = f" of {wanted}" if wanted and ended < wanted else ""
    return f"{'Stopped' if stopped else 'Done'} after {ended}{of_wanted} trials: {listed}."


def _write_report(folder: str) -> None:
    """Write the page of the search into its folder. A failure is reported, and does not fail the search."""
    from hexloop.app.command_line.pages import REPORT, write_search_report
    from hexloop.app.pages.trials import shown_search

    try:
        write_search_report(shown_search(Path(folder)), Path(folder, REPORT))
    except Exception as error:
        print_text(f"hexloop: the report was not written: {error}")


def _listed(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value:.5g}" if isinstance(value, float) else f"{name}={value}"
                     for name, value in parameters.items()) or "no parameters"  # fmt: skip


def _described(data: Mapping[str, Any]) -> str:
    when = data.get("when")
    condition = f", if {next(iter(when))} is {', '.join(map(str, next(iter(when.values()))))}" if when else ""
    if "choices" in data:
        return f"{', '.join(map(str, data['choices']))}{condition}"
    step = f" in steps of {data['step']}" if data.get("step") not in (None, 1) else ""
    return f"{data['low']} to {data['high']}{step}{', logarithmic' if data.get('log') else ''}{condition}"
