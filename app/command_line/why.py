"""`hexloop why`: the first step, tensor and sample at which two runs differ.

It compares what both runs recorded, looks for the last equal checkpoint by bisection, and repeats the steps between
that one and the first difference, if the user names a recipe. Code and files of a run's folder are never executed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from hexloop.app.assembly.storage import joined
from hexloop.app.command_line import ExitCode
from hexloop.app.command_line.checkpoints import diff
from hexloop.app.command_line.compared_runs import Side, environment_differences, sides_of
from hexloop.app.command_line.runs import NAMES
from hexloop.app.printing import print_document, print_lines
from hexloop.domain.errors import CheckpointError, ConfigurationError, StorageError
from hexloop.domain.journal import ObservationKind, RunComparison, compare
from hexloop.domain.run_folder import RUN_STATE
from hexloop.domain.why import Finding, Recording, first_difference, last_equal, recording_of
from hexloop.ports.logger import Fact

STATE_DOCUMENTS = frozenset(
    {RUN_STATE, *(f"{name}.json" for name in ("optimizer", "scheduler", "scaler", "losses", "data", "random"))}
)
"""The documents of a checkpoint that are the state of a run, and not how it was set up."""

WITHOUT_EFFECT = (
    *("logging_", "log_", "logger_grace", "report_to", "project", "trackio", "outbox", "hub_", "push_to_hub"),
    *("save_", "checkpoint_key", "load_best", "metric_for", "greater_is", "eval_", "per_device_eval", "predictions_"),
    *("dataloader_num", "dataloader_pin", "dataloader_prefetch", "dataloader_persistent", "disable_tqdm", "board_"),
    *("stop_", "interrupts", "skip_memory", "peak_flops", "profile", "do_"),
)
"""The starts of the names of arguments that do not change what a step computes."""

LARGEST_RESULT = 1 << 30
"""Bytes of a recording that are read."""

MOST_SHOWN, MOST_PAIRS = 2, 12
"""Differences of checkpoints, and pairs of arguments or versions, that are printed. JSON has all."""


@frozen
class Checkpoints:
    """What the checkpoints tell. equal, different: the last equal and the first different step that both runs saved."""

    compared: int = 0
    equal: int | None = None
    different: int | None = None
    differences: tuple[str, ...] = ()
    problem: str = ""


@define
class Answer:
    """Everything that was found out."""

    sides: tuple[Side, Side]
    settings: dict[str, tuple[Fact, Fact]] = field(factory=dict)
    environment: dict[str, tuple[str, str]] = field(factory=dict)
    journal: RunComparison | None = None
    checkpoints: Checkpoints = field(factory=Checkpoints)
    finding: Finding | None = None
    replay: str = ""
    differs: bool = False

    @property
    def effective(self) -> dict[str, tuple[Fact, Fact]]:
        """The arguments that differ and may change what a step computes."""
        return {name: each for name, each in self.settings.items() if not name.startswith(WITHOUT_EFFECT)}


def run(options: Namespace) -> ExitCode:
    """Print why two runs differ. Return FAILED if they do, DONE if they are equal as far as is known."""
    answer = explain(options.one, options.other, options.first_recipe, options.second_recipe)
    if options.json:
        print_document(_document(answer))
    else:
        print_lines(*_lines(answer))
    return ExitCode.FAILED if answer.differs else ExitCode.DONE


def explain(one: str, other: str, recipe: str | None = None, other_recipe: str | None = None) -> Answer:
    """Return what is known of why two runs differ.

    Raises ConfigurationError if a folder or a recipe does not exist, or if neither journals nor checkpoints can be
    compared.
    """
    problems = [
        problem
        for each in dict.fromkeys((recipe, other_recipe))
        if each is not None and (problem := _recipe_problem(each))
    ]
    sides = sides_of(one, other, problems)
    if problems:
        raise ConfigurationError(problems)
    answer = Answer(sides)
    first, second = sides
    if first.timeline is not None and second.timeline is not None:
        answer.journal = compare(first.timeline, second.timeline)
        answer.settings = dict(answer.journal.settings)
    answer.environment = dict(environment_differences(first, second))
    answer.checkpoints = _bisect(first, second)
    if not answer.checkpoints.compared and (answer.journal is None or not answer.journal.compared):
        lacks = [f"{each.given}: {problem}" for each in sides for problem in each.missing]
        raise ConfigurationError(
            f"{one} and {other} have nothing in common to compare: no checkpoint of the same step, and no journal of "
            f"the same steps. {' '.join(lacks)}".rstrip()
        )
    diverges = answer.journal is not None and bool(answer.journal.divergences)
    answer.differs = diverges or answer.checkpoints.different is not None
    _repeat(answer, recipe, other_recipe or recipe)
    return answer


def _recipe_problem(recipe: str) -> str:
    """Return why a file cannot be a recipe; "" if it may be one."""
    if not os.path.isfile(recipe):
        return f"You chose the recipe {recipe}, but there is no such file; check its name."
    if recipe.endswith(".py"):
        return (
            f"You chose the recipe {recipe}, but it is a script, whose steps cannot be repeated one by one; write a "
            "recipe that names its functions for model and data, as `hexloop init` writes beside train.py."
        )
    return ""


# Checkpoints


def _bisect(one: Side, other: Side) -> Checkpoints:
    """Find the last checkpoint in which both runs are equal, and the first in which they differ."""
    common = sorted(one.manifests.keys() & other.manifests.keys())
    found: dict[int, tuple[str, ...]] = {}

    def is_equal(step: int) -> bool:
        found[step] = tuple(_state_differences(one, other, step))
        return not found[step]

    try:
        equal, different = last_equal(common, is_equal)
    except (CheckpointError, StorageError) as error:
        return Checkpoints(problem=f"The checkpoints cannot be compared: {error}")
    return Checkpoints(len(common), equal, different, found.get(different or -1, ()))


def _state_differences(one: Side, other: Side, step: int) -> Iterator[str]:
    """Yield how the state of the two runs differs in their checkpoints of a step; setup and identity are left out."""
    for _, difference in diff.compare(one.files(step), other.files(step), strict=False):
        if isinstance(difference, diff.TensorDifference) or (
            isinstance(difference, diff.FieldDifference) and _is_state(difference)
        ):
            yield str(difference).strip()


def _is_state(difference: diff.FieldDifference) -> bool:
    identifies = bool(difference.name) and difference.name[0] in ("trackers", "seconds")
    return difference.file in STATE_DOCUMENTS and not identifies


# Repeating steps


def _repeat(answer: Answer, recipe: str | None, other_recipe: str | None) -> None:
    """Repeat the steps between the last equal checkpoint and the first difference, and note what differs first."""
    start, until = answer.checkpoints.equal, _until(answer)
    if until is None:
        return
    first = (start or 0) + 1
    steps = f"step {until:,}" if first == until else f"steps {first:,} to {until:,}"
    if recipe is None or other_recipe is None:
        answer.replay = (
            f"Name the recipe with --recipe RECIPE (and --other-recipe RECIPE) to repeat {steps} of both runs, which "
            "finds the first tensor and sample. For the run of a script, write a recipe that names its functions for "
            "model and data; recorded numbers are taken from the runs."
        )
        return
    if (shared := next((each for each in answer.sides if each.processes > 1), None)) is not None:
        answer.replay = _in_one_process(shared)
        return
    recordings: list[Recording] = []
    for side, its_recipe in zip(answer.sides, (recipe, other_recipe), strict=True):
        checkpoint = None if start is None else joined(os.path.abspath(side.folder), side.manifests[start][0])
        found = _recording(its_recipe, side, checkpoint, until)
        if isinstance(found, str):
            answer.replay = f"{side.given} could not be repeated in {steps}: {found}"
            return
        recordings.append(found)
    wrong = [
        f"{side.given} ({problem})"
        for side, recording in zip(answer.sides, recordings, strict=True)
        if (problem := _departs(side, recording, until)) is not None
    ]
    answer.finding = first_difference(*recordings)
    if wrong:
        answer.finding = None
        answer.replay = (
            f"The repetition of {steps} does not reproduce {' and '.join(wrong)}: code, data, packages or the machine "
            "have changed since, or the recipe is not that of the run."
        )
    elif answer.finding is None:
        answer.replay = (
            f"Both runs are equal when {steps} of them are repeated here: what made them differ is neither in the "
            "recipes nor in the recorded arguments, such as a request or the machine."
        )
    else:
        answer.replay = f"The repetition of {steps} is what both runs recorded."


def _in_one_process(side: Side) -> str:
    """Return why the steps of a run of several processes are not repeated, and what to do instead."""
    size = side.settings.get("per_device_train_batch_size")
    whole = f" --per_device_train_batch_size {size * side.processes}" if isinstance(size, int) else ""
    return (
        f"{side.given} was trained by {side.processes} processes, and only steps of one process are repeated. To find "
        "the first tensor and sample, train both runs again in one process, with the same samples in each step, and "
        f"compare the new folders: hexloop train RECIPE --output_dir FOLDER{whole} --journal steps"
    )


def _until(answer: Answer) -> int | None:
    """Return the first step at which a difference was seen."""
    seen = [] if answer.checkpoints.different is None else [answer.checkpoints.different]
    if answer.journal is not None and answer.journal.first is not None:
        seen.append(max(answer.journal.first.step, (answer.checkpoints.equal or 0) + 1))
    return min(seen, default=None)


def _recording(recipe: str, side: Side, checkpoint: str | None, until: int) -> Recording | str:
    """Return what the steps of a run compute, in a process of their own; a text says why that failed."""
    with tempfile.TemporaryDirectory(prefix="hexloop-why-") as folder:
        request, result = Path(folder, "request.json"), Path(folder, "result.json")
        values = {
            "recipe": os.path.abspath(recipe),
            "settings": dict(side.settings),
            "checkpoint": checkpoint,
            "until": until,
            "result": str(result),
        }
        request.write_text(json.dumps(values), encoding="utf-8")
        # -P: modules are found where this process finds them, and not in the folder of the runs
        command = [sys.executable, "-P", "-m", "hexloop.app.command_line.replay", str(request)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=environment)
        if not result.exists():
            return (ended.stderr.strip().splitlines() or ["the process ended without a result"])[-1]
        if result.stat().st_size > LARGEST_RESULT:
            return "its recording is too large to compare; save more often"
        document = json.loads(result.read_text(encoding="utf-8"))
    if "error" in document:
        return str(document["error"])
    return recording_of(document["recording"])


def _departs(side: Side, recording: Recording, until: int) -> str | None:
    """Return how the repetition differs from what the run recorded; None if nothing does."""
    columns = {} if side.timeline is None else side.timeline.observations()
    losses = columns.get((ObservationKind.LOSS, "of the step"))
    recorded = {} if losses is None else dict(zip(losses.steps, losses.values, strict=True))
    rates = columns.get((ObservationKind.LEARNING_RATE, "of the step"))
    known_rates = {} if rates is None else dict(zip(rates.steps, rates.values, strict=True))
    for step in recording.steps:
        total = sum(float.fromhex(batch.loss) for batch in step.batches)
        if step.step in recorded and not _same_number(recorded[step.step], total):
            return f"its loss at step {step.step:,} was {recorded[step.step]}, and is {total!r} now"
        if step.step in known_rates and step.groups and step.groups[0].get("lr") != repr(known_rates[step.step]):
            return (
                f"its learning rate at step {step.step:,} was {known_rates[step.step]}, and is "
                f"{step.groups[0].get('lr')} now"
            )
    if until in side.manifests and recording.steps:
        return _departs_from_checkpoint(side, recording, until)
    return None


def _departs_from_checkpoint(side: Side, recording: Recording, until: int) -> str | None:
    import xxhash

    try:
        parts = side.files(until)[0].parts("model")
        for part in parts:
            repeated = recording.steps[-1].weights.get(part.name)
            if repeated is not None and repeated.rpartition(" ")[2] != xxhash.xxh3_64_hexdigest(part.read()):
                return f"{part.name} in its checkpoint of step {until:,} is another"
    except (CheckpointError, StorageError) as error:
        return f"its checkpoint cannot be read: {error}"
    return None


def _same_number(one: object, other: float) -> bool:
    return isinstance(one, int | float) and (one == other or (one != one and other != other))


# The answer


def _lines(answer: Answer) -> Iterator[str]:
    first, second = (each.given for each in answer.sides)
    checkpoints, journal = answer.checkpoints, answer.journal
    if answer.finding is not None:
        yield f"{first} and {second}: {answer.finding.sentence()}"
    elif answer.differs:
        yield f"{first} and {second} differ."
    else:
        yield f"{first} and {second} are equal in everything that both recorded."
    yield from _pairs("Arguments that differ and change what a step computes", answer.effective)
    rest = {name: each for name, each in answer.settings.items() if name not in answer.effective}
    yield from _pairs("Other arguments that differ", rest)
    yield from _pairs("The environment differs", answer.environment)
    if journal is not None:
        for each in journal.divergences:
            until = "" if each.equal_until is None else f", equal until step {each.equal_until:,}"
            yield f"Journals: different in {NAMES[each.kind]} from step {each.step:,} on ({each.name}){until}"
        equal = [NAMES[kind] for kind in journal.compared if kind not in {each.kind for each in journal.divergences}]
        if equal:
            yield f"Journals: equal in {', '.join(equal)}, up to step {journal.last:,}"
    if checkpoints.problem:
        yield checkpoints.problem
    elif checkpoints.compared:
        if checkpoints.equal is not None:
            yield f"Checkpoints: equal until step {checkpoints.equal:,}"
        if checkpoints.different is not None:
            yield f"Checkpoints: different from step {checkpoints.different:,} on:"
            yield from (f"  {each}" for each in checkpoints.differences[:MOST_SHOWN])
            if len(checkpoints.differences) > MOST_SHOWN:
                yield f"  and {len(checkpoints.differences) - MOST_SHOWN:,} more"
    for side in answer.sides:
        yield from (f"{side.given}: {each}" for each in side.missing)
    if answer.replay:
        yield answer.replay


def _pairs(title: str, pairs: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    if pairs:
        yield f"{title}:"
        for name, (one, other) in list(pairs.items())[:MOST_PAIRS]:
            yield f"  {name}: {_shown(one)} and {_shown(other)}"
        if len(pairs) > MOST_PAIRS:
            yield f"  and {len(pairs) - MOST_PAIRS:,} more"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _document(answer: Answer) -> dict[str, Any]:
    finding, checkpoints, journal = answer.finding, answer.checkpoints, answer.journal
    return {
        "runs": [each.given for each in answer.sides],
        "differs": answer.differs,
        "finding": None
        if finding is None
        else {
            "cause": finding.cause.value,
            "step": finding.step,
            "name": finding.name,
            "values": list(finding.values),
            "further": list(finding.further),
        },
        "settings": {name: list(values) for name, values in answer.settings.items()},
        "effective_settings": sorted(answer.effective),
        "environment": {name: list(values) for name, values in answer.environment.items()},
        "journal": []
        if journal is None
        else [
            {"what": NAMES[each.kind], "step": each.step, "name": each.name, "equal_until": each.equal_until}
            for each in journal.divergences
        ],
        "checkpoints": {
            "compared": checkpoints.compared,
            "equal": checkpoints.equal,
            "different": checkpoints.different,
            "differences": list(checkpoints.differences),
        },
        "replay": answer.replay,
        "missing": {each.given: each.missing for each in answer.sides},
    }
