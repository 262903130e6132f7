"""The forecast of a run: a step with fake tensors for its memory, a few real steps of a copy for its time.

Copies of the Trainer do both. They write to a temporary folder, and the random generators are put back at the end.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, cast

from attrs import define, evolve, field, frozen

from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.state import TENSORS, CheckpointContents
from hexloop.app.assembly.storage import is_elsewhere
from hexloop.app.run.session import RunHost, Session, open_session, triggers_of
from hexloop.domain.errors import ConfigurationError, HexloopError
from hexloop.domain.events import CheckpointPublished, SaveFailed, StepEnded, TrainBegan
from hexloop.domain.forecast import Counts, Forecast, Room, StepMemory, Timing, counts_of, memory_warnings, size_text

BATCHES = 32
"""Steps whose batches are read to find the largest."""

SECONDS_OF_READING = 10.0
"""After so many seconds no further batch is read."""

EVALUATED_BATCHES = 8
"""Batches of each evaluation that is measured."""

SIZE_OF_CHECKPOINT = "the size of a checkpoint"

LARGEST_SAVE = 4_000_000_000
"""A larger checkpoint is not written to measure how long that takes."""

QUIET: Mapping[str, Any] = {
    "report_to": "none", "push_to_hub": False, "load_best_model_at_end": False, "auto_find_batch_size": False,
    "journal": "off", "board_control": False, "disable_tqdm": True, "profile": None, "eval_on_start": False,
    "logging_strategy": "no", "eval_strategy": "no", "save_strategy": "no", "stop_file": None, "stop_after": None,
    "logging_first_step": False, "predictions_folder": None, "resume_from_checkpoint": None,
}  # fmt: skip
"""The arguments of a copy that differ from those of the run: it reports nothing and publishes nothing."""


class Copy(Protocol):
    """A Trainer with a copy of the model, which trains in a folder of its own."""

    model: Any

    def stream(self) -> Any:
        """Return a run as a generator of events."""

    def evaluate(self, eval_dataset: Any = None) -> dict[str, float]:
        """Evaluate a data set."""

    def request_save(self) -> Any:
        """Save at the next step boundary."""

    def request_stop(self, reason: str = "", save: bool = False) -> None:
        """Stop at the next step boundary; with `save`, save a checkpoint first."""

    def _run_host(self) -> RunHost:
        """Return what constructs a run."""


MakeCopy = Callable[..., Copy]
"""Returns a copy of the Trainer. By keyword: model, optimizer, lr_scheduler; arguments, by name; and whether the run
is in this process `alone`, without its engine."""


@define
class Findings:
    """What is found on the way.

    notes: what could not be found out, a sentence each. opening: seconds until a run was constructed, which is longer
    the first time in a process.
    """

    notes: list[str] = field(factory=list)
    memory: StepMemory | None = None
    timing: Timing | None = None
    opening: float = 0.0
    copies: int = 0
    checkpoint: int | None = None


@frozen
class Length:
    """What the first batches tell of the run."""

    counts: Counts
    epochs: float | None
    window: int
    tokens: int | None


def forecast_run(parts: TrainerParts, make_copy: MakeCopy, steps: int, room: Room | None = None) -> Forecast:
    """Return the forecast of the run that `parts` would train. Collective.

    steps: how many steps are measured after the first one; 0 measures nothing. room: the memory that is free, by
    default that of the device. Raises ConfigurationError with every problem for which the run would be refused, and
    for data that can be read only once.
    """
    _refuse_one_shot(parts.train_dataset)
    device, framework = parts.adapters.device, parts.adapters.framework
    found, streams = Findings(), list(device.export())
    room = _room(parts) if room is None else room
    on_host = device.name.partition(":")[0] == "cpu"
    try:
        with _folder(parts) as folder:
            length = _simulate(parts, make_copy, folder, found)
        warnings = [] if found.memory is None else list(memory_warnings(found.memory, found.copies, room, on_host))
        if steps > 0:
            needed = _peak(found, on_host)
            if room is not None and needed is not None and needed > room.free:
                found.notes.append("the time, because no step was taken: it would run out of memory")
            else:
                with _folder(parts) as folder:
                    _measure(parts, make_copy, folder, found, length.counts, steps)
                if not warnings and found.memory is not None:
                    warnings = list(memory_warnings(found.memory, found.copies, room, on_host))
    finally:
        device.load(streams)
        gc.collect()
        device.release_memory()
    parameters, trainable = framework.parameter_counts(parts)
    if found.checkpoint is not None and length.counts.saves:
        warnings += _disk_warnings(parts, found.checkpoint)
    return Forecast(
        model=type(parts.unwrapped_model).__name__,
        device=device.name,
        precision=str(parts.adapters.precision.name),
        parameters=parameters,
        trainable=trainable,
        processes=parts.adapters.mesh.size,
        window=length.window,
        counts=length.counts,
        epochs=length.epochs,
        samples=length.window * length.counts.steps,
        tokens=length.tokens,
        step_memory=found.memory,
        copies=found.copies,
        checkpoint=found.checkpoint,
        saved_at_once=parts.args.save_total_limit,
        timing=found.timing,
        room=room,
        notes=tuple(found.notes),
        warnings=tuple(warnings),
    )


def _peak(found: Findings, on_host: bool) -> int | None:
    return None if found.memory is None else found.memory.peak + (found.copies if on_host else 0)


def _refuse_one_shot(dataset: Any) -> None:
    if dataset is not None and not hasattr(dataset, "__getitem__") and hasattr(dataset, "__next__"):
        raise ConfigurationError(
            "A forecast reads the first batches of the training data, but these can be read only once: train_dataset "
            "is an iterator. Pass an object whose __iter__ starts from the beginning each time."
        )


@contextmanager
def _folder(parts: TrainerParts) -> Iterator[str]:
    """Make a temporary folder, the same for all processes, and remove it in the end. Collective."""
    collectives, writes = parts.adapters.collectives, parts.adapters.mesh.writes
    folder = str(collectives.broadcast(tempfile.mkdtemp(prefix="hexloop-forecast-") if writes else ""))
    os.makedirs(folder, exist_ok=True)
    try:
        yield folder
        collectives.broadcast("")  # no other process uses it any more
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _room(parts: TrainerParts) -> Room | None:
    """Return what is free for the run. What this process has on the device already is its own."""
    device = parts.adapters.device
    if device.name.partition(":")[0] != "cpu":
        own = parts.adapters.framework.free_on(device)
        return None if own is None else Room(own, device.name)
    free = parts.adapters.framework.free_on_host()
    if free is None:
        return None
    here = sum(int(each.nbytes) for each in parts.model.parameters())
    return Room(free + here, "this machine")


# Memory, with fake tensors


def _simulate(parts: TrainerParts, make_copy: MakeCopy, folder: str, found: Findings) -> Length:
    """Construct the run on fake tensors, read its first batches, and count the memory of a step on the largest."""
    args, adapters, framework = parts.args, parts.adapters, parts.adapters.framework
    capabilities = adapters.parallelism.capabilities
    changes: dict[str, Any] = {**QUIET, "output_dir": folder, "torch_compile": False, "capture_step": False}
    changes |= {"dataloader_num_workers": 0, "dataloader_prefetch_factor": None, "dataloader_persistent_workers": False}
    refused = _not_simulated(parts)
    fake = None
    if refused is None:
        try:
            fake = framework.fake_copy(
                parts.model,
                None if parts.own_optimizer else parts.optimizer,
                None if parts.own_optimizer else parts.lr_scheduler,
                adapters.device,
            )
        except Exception as error:
            refused = f"the model cannot be copied ({_short(error)})"
    objects = (deepcopy(parts.model), None, None) if fake is None else fake.objects
    model, optimizer, lr_scheduler = objects
    copy = make_copy(model=model, optimizer=optimizer, lr_scheduler=lr_scheduler, arguments=changes, alone=True)
    started = time.perf_counter()
    session = open_session(copy._run_host(), None)
    found.opening = time.perf_counter() - started
    run = session.run
    try:
        windows = _first_windows(session, BATCHES)
        plan = run.plan
        counts = counts_of(plan, triggers_of(args, plan, parts.callback_handler.has_default_flow), args.eval_on_start)
        largest = max(windows, key=lambda each: max(map(framework.values_in, each)))
        if fake is not None:
            try:
                found.memory = fake.step_memory(session.parts, run, largest)
            except Exception as error:
                refused = f"{_short(error)}, when the step was computed without values"
        _note_compilation(args, found)
        if found.memory is not None and capabilities.sharded:
            shards = adapters.mesh.along("shard").size
            found.memory = found.memory.sharded(shards)
            found.notes.append(
                f"how much the layers take whose weights are gathered for their computation; weights, gradients and "
                f"moments are counted as a share of one in {shards}"
            )
        if refused is not None:
            found.notes.append(f"the memory of a step before one is taken: {refused}")
        else:
            _note_sizes(session, found, counts)
        length = _length(session, windows, counts, parts)
    finally:
        run.close()
    return length


def _not_simulated(parts: TrainerParts) -> str | None:
    """Return why a step cannot be computed with fake tensors; None if it may be."""
    parallelism, engine = parts.adapters.parallelism.capabilities, parts.adapters.engine
    if parallelism.owns_update or parallelism.owns_state:
        return f"{parallelism.name} makes the updates itself, with memory that it decides on"
    if parts.args.n_gpu > 1:
        return "the model is copied to several GPUs of this process"
    if type(engine).__module__.partition(".")[0] != "hexloop":
        return f"the engine {type(engine).__name__} is not one of hexloop's"
    return None


def _note_compilation(args: Any, found: Findings) -> None:
    if args.torch_compile and found.memory is not None:
        found.notes.append("what torch.compile saves of the activations; they are counted as without it")


def _first_windows(session: Session, count: int) -> list[list[Any]]:
    """Return the batches of the run's first steps."""
    run, started = session.run, time.monotonic()
    windows: list[list[Any]] = []
    batches = run.windows(run.batches.epoch(0, 0), run.plan.accumulation)
    with closing(batches):
        for window in islice(batches, count):
            windows.append(window)
            if time.monotonic() - started > SECONDS_OF_READING:
                break
    if not windows:
        raise ConfigurationError("The training data yielded no batches: it is empty. Provide at least one sample.")
    return windows


def _length(session: Session, windows: Sequence[Sequence[Any]], counts: Counts, parts: TrainerParts) -> Length:
    run, framework, main = session.run, parts.adapters.framework, parts.main_input_name
    values = [framework.values_in(_input(batch, main)) for window in windows for batch in window]
    steps = len(windows)
    per_step = sum(values) / steps
    ranks = parts.adapters.mesh.data.size
    tokens = round(per_step * counts.steps * ranks) if _counts_tokens(windows, main) else None
    per_epoch = run.plan.steps_per_epoch
    epochs = None if per_epoch is None else counts.steps / per_epoch
    return Length(counts, epochs, run.state.global_batch_size, tokens)


def _input(batch: Any, name: str) -> Any:
    try:
        return batch[name]
    except (KeyError, TypeError, IndexError):
        return None


def _counts_tokens(windows: Sequence[Sequence[Any]], name: str) -> bool:
    value = _input(windows[0][0], name)
    return value is not None and "int" in str(getattr(value, "dtype", ""))


def _note_sizes(session: Session, found: Findings, counts: Counts) -> None:
    """Note how large a checkpoint is, and the copies from which it is written in the background."""
    contents = cast(CheckpointContents, session.checkpoints.contents)
    try:
        sizes = dict(contents.sizes(session.run.state))
    except Exception as error:
        found.notes.append(f"{SIZE_OF_CHECKPOINT} before one is written ({_short(error)})")
        return
    found.checkpoint = sum(sizes.values())
    tensors = sum(size for path, size in sizes.items() if path.endswith(TENSORS))
    found.copies = tensors if counts.saves and session.parts.args.save_async else 0


def _disk_warnings(parts: TrainerParts, checkpoint: int) -> Iterator[str]:
    folder = parts.folder
    if is_elsewhere(folder):
        return
    path = Path(folder).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    with suppress(OSError):
        free = shutil.disk_usage(path).free
        kept = 2 if parts.args.save_total_limit is None else parts.args.save_total_limit + 1
        if checkpoint * kept > free:
            yield (
                f"{folder} has {size_text(free)} free, and {kept} checkpoints of {size_text(checkpoint)} do not fit; "
                "free some, choose another output_dir, or set save_only_model=True."
            )


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


# Time, with real steps


def _measure(
    parts: TrainerParts, make_copy: MakeCopy, folder: str, found: Findings, counts: Counts, steps: int
) -> None:
    """Take real steps with a copy of the model, and note how long they, a save and an evaluation take."""
    args = parts.args
    changes: dict[str, Any] = {**QUIET, "output_dir": folder}
    memory = found.memory
    about = found.checkpoint if memory is None or found.checkpoint is not None else memory.weights + memory.moments
    saves = counts.saves > 0 and about is not None and _can_save(folder, about)
    if saves:
        changes |= {"save_strategy": "steps", "save_steps": 1 << 40}
    model, optimizer, lr_scheduler = deepcopy(
        (
            parts.model,
            None if parts.own_optimizer else parts.optimizer,
            None if parts.own_optimizer else parts.lr_scheduler,
        )
    )
    copy = make_copy(model=model, optimizer=optimizer, lr_scheduler=lr_scheduler, arguments=changes, alone=False)
    try:
        found.timing = _timed_steps(parts, copy, found, min(steps, max(counts.steps - 1, 0)), folder if saves else None)
    except HexloopError:
        raise
    except Exception as error:
        if not parts.adapters.device.is_out_of_memory(error):
            raise
        found.notes.append(f"the time: a step ran out of memory ({_short(error)})")
        return
    if counts.evaluations and parts.eval_dataset is not None:
        found.timing = evolve(found.timing, evaluation=_timed_evaluation(parts, copy, found))
    elif args.eval_strategy != "no":
        found.notes.append("the time of evaluations, for which there is no data set")


def _can_save(folder: str, size: int) -> bool:
    return size <= LARGEST_SAVE and size * 3 < shutil.disk_usage(folder).free


def _timed_steps(parts: TrainerParts, copy: Copy, found: Findings, steps: int, folder: str | None) -> Timing:
    """Return the seconds of the first step, of those after it, of a save among them, and of the end."""
    framework, device, clock = parts.adapters.framework, parts.adapters.device, time.perf_counter
    times: list[float] = []

    def advance(events: Any, *kinds: type[Any]) -> Any:
        return next((event for event in events if type(event) in kinds), None)

    with closing(copy.stream()) as events:
        started = clock()
        advance(events, TrainBegan)
        opened = clock()
        advance(events, StepEnded)
        framework.wait_for_device(device)
        first = max(opened - started, found.opening) + clock() - opened
        for _ in range(steps):
            started = clock()
            if advance(events, StepEnded) is None:
                break
            framework.wait_for_device(device)
            times.append(clock() - started)
        timing = Timing(first, tuple(times or [first]))
        if found.memory is None and steps:
            now = copy._run_host().parts()
            found.memory = framework.count_real_step(now, lambda: advance(events, StepEnded))
        if folder is not None and steps:
            copy.request_save()
            event = advance(events, StepEnded)
            started, taken = clock(), 0
            while event is not None and not isinstance(event, CheckpointPublished | SaveFailed):
                event = advance(events, StepEnded, CheckpointPublished, SaveFailed)
                taken += isinstance(event, StepEnded)
            timing = evolve(timing, save=max(clock() - started - taken * timing.step, 0.0))
            if isinstance(event, CheckpointPublished):
                _note_checkpoint(parts, found, Path(folder, event.name))
        copy.request_stop(save=folder is not None)
        ended = clock()
        for event in events:
            if isinstance(event, StepEnded):
                framework.wait_for_device(device)
                ended = clock()
        return evolve(timing, end=clock() - ended)


def _note_checkpoint(parts: TrainerParts, found: Findings, folder: Path) -> None:
    """Note the size of a checkpoint that was written, and of the copies from which it was."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    found.checkpoint = sum(map(os.path.getsize, files))
    found.notes = [each for each in found.notes if not each.startswith(SIZE_OF_CHECKPOINT)]
    if parts.args.save_async:
        found.copies = sum(os.path.getsize(each) for each in files if each.suffix == TENSORS)


def _timed_evaluation(parts: TrainerParts, copy: Copy, found: Findings) -> float | None:
    """Return the seconds of an evaluation of all data sets, from those of some batches."""
    datasets, size = parts.eval_dataset, parts.args.eval_batch_size
    total = 0.0
    for dataset in datasets.values() if isinstance(datasets, dict) else [datasets]:
        try:
            samples = len(dataset)
        except TypeError:
            found.notes.append("the time of evaluations, whose data set has no length")
            return None
        batches = -(-samples // size)
        measured = min(batches, EVALUATED_BATCHES)
        try:
            if batches > 1:  # what happens only once
                copy.evaluate(_first_samples(dataset, min(samples, size)))
            started = time.perf_counter()
            copy.evaluate(_first_samples(dataset, min(samples, measured * size)))
            total += (time.perf_counter() - started) * batches / measured
        except Exception as error:
            found.notes.append(f"the time of evaluations: one of a part of the data failed ({_short(error)})")
            return None
    return total


def _first_samples(dataset: Any, count: int) -> Any:
    if len(dataset) == count:
        return dataset
    select = getattr(dataset, "select", None)  # of a data set of Hugging Face, which keeps its columns
    return select(range(count)) if callable(select) else FirstSamples(dataset, count)


@frozen
class FirstSamples:
    """The first samples of a data set."""

    dataset: Any
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not -self.count <= index < self.count:
            raise IndexError(index)
        return self.dataset[index % self.count]
