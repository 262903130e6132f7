"""Records of runs: everything that two runs are compared by."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, SupportsFloat, cast

from attrs import asdict, define, field

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.evaluation import is_reading
from hexloop.domain.events import AnyEvent, StepEnded, TrainBegan, TrainEnded
from hexloop.domain.loop import train
from hexloop.domain.run import Run
from hexloop.domain.run_folder import RUN_STATE
from hexloop.domain.state import READINGS, RunState
from hexloop.ports.storage import File

Cut = Callable[[AnyEvent], bool]
"""Return whether to save a checkpoint and interrupt the run at this event."""

NOT_COMPARED = ("run", "parent_checkpoint", "best_checkpoint", "gradient_norm", *READINGS)
"""Fields of the run state that differ between two equal runs, or that are kept for checkpoints only."""

DATA = ("data", "batches")
"""Documents that may describe the same data position in two ways. The data themselves are compared at every step."""


@define
class RecordedRun:
    """What two runs are compared by. All values are JSON.

    steps: the inputs and results of each step. started_at: the step after which the recording started.
    values: everything at the end that is not a tensor, by name.
    tensors: (dtype, shape, bytes in base64) of each tensor at the end.
    """

    steps: dict[int, dict[str, Any]] = field(factory=dict)
    started_at: int = 0
    values: dict[str, Any] = field(factory=dict)
    tensors: dict[str, tuple[str, list[int], str]] = field(factory=dict)

    @property
    def last_step(self) -> int:
        """The last step of the run."""
        return max(self.steps, default=self.started_at)


def to_json(record: RecordedRun) -> str:
    """Return the record as JSON."""
    return json.dumps(asdict(record))


def from_json(text: str) -> RecordedRun:
    """Return the record that `to_json` wrote."""
    document = json.loads(text)
    return RecordedRun(**{**document, "steps": {int(step): recorded for step, recorded in document["steps"].items()}})


def step_is(step: int) -> Cut:
    """Return a `Cut` that interrupts the run at the end of a step."""
    return lambda event: isinstance(event, StepEnded) and event.step == step


def record_run(subject: Any, resume: bool = False, cut: Cut | None = None, stop: bool = False) -> RecordedRun:
    """Drive a Trainer or a Run to its end, or to the first event at which `cut` returns True, and record it.

    At that event a checkpoint is requested, and the run is abandoned as soon as it is complete. With `stop`, the run is
    stopped in the regular way instead.
    """
    record, batches, asked = RecordedRun(), list[dict[str, str]](), None
    with closing(_events(subject, resume)) as events:
        for event in events:
            run = subject if isinstance(subject, Run) else _session(subject).run
            if isinstance(event, TrainBegan):
                record.started_at = event.step
                run.counters = [*run.counters, lambda batch: batches.append(dict(_digests("", batch)))]
            elif isinstance(event, StepEnded):
                record.steps[event.step] = _step_record(event, run.state, batches)
                batches.clear()
            elif isinstance(event, TrainEnded) and cut is None:
                _record_end(record, subject, run)
            if cut is not None and asked is None and cut(event):
                asked = run.requests.request_save()
                if stop:
                    run.requests.request_stop("to be resumed")
            if asked is not None and asked.done and not stop:
                break
    if asked is not None:
        asked.wait(60)  # raises the reason if the checkpoint was not written
    return record


def _events(subject: Any, resume: bool) -> Generator[AnyEvent, None, None]:
    if not isinstance(subject, Run):
        return cast("Generator[AnyEvent, None, None]", subject.stream(resume_from_checkpoint=resume))
    if resume:
        state = _store(subject).resume()
        if state is None:
            raise ValueError("The job's run finds no checkpoint in its folder; let it save to the folder it is given.")
        subject.state = state
    return train(subject)


def _session(trainer: Any) -> Any:
    from hexloop.app.trainer.attributes import session_of

    session = session_of(trainer)
    assert session is not None
    return session


def _store(run: Run[Any, Any]) -> CheckpointStore:
    if not isinstance(run.checkpoints, CheckpointStore):
        raise ValueError(
            f"The job's run cannot be resumed: its checkpoints is a {type(run.checkpoints).__name__}; use a "
            "CheckpointStore on the folder that the job is given."
        )
    return run.checkpoints


def _step_record(event: StepEnded, state: RunState, batches: list[dict[str, str]]) -> dict[str, Any]:
    norm = cast("SupportsFloat | None", event.gradient_norm)
    return {
        "batch": list(batches),
        "loss": [repr(float(cast(SupportsFloat, loss))) for loss in event.losses],
        "gradient norm": None if norm is None else repr(float(norm)),
        "learning rate": state.learning_rate,
        "update taken": event.taken,
    }


def _digests(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield each tensor of a batch by name with a digest of its bytes, and other values with a digest of their repr."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _digests(f"{path}.{name}" if path else str(name), each)
    elif isinstance(value, list | tuple) and any(hasattr(each, "detach") for each in value):
        for number, each in enumerate(value):
            yield from _digests(f"{path}[{number}]", each)
    elif hasattr(value, "detach"):
        import torch

        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        yield path, f"{value.dtype} {tuple(value.shape)} {hashlib.blake2b(data, digest_size=8).hexdigest()}"
    else:
        yield path, hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _record_end(record: RecordedRun, subject: Any, run: Run[Any, Any]) -> None:
    """Record everything that a checkpoint would contain now."""
    for file in _files(subject, run):
        data = b"".join(bytes(chunk) for chunk in file.chunks)
        name, _, kind = file.path.rpartition(".")
        if kind == "safetensors":
            record.tensors.update({f"{name}: {tensor}": each for tensor, *each in _tensors(data)})  # type: ignore[misc]
        elif file.path == RUN_STATE:
            record.values |= {name: value for name, value in json.loads(data).items() if name not in DATA}
        else:
            record.values[name] = json.loads(data)
    record.values["run_state"] = _comparable(record.values["run_state"])


def _files(subject: Any, run: Run[Any, Any]) -> Iterable[File]:
    if isinstance(subject, Run):
        return _store(subject).contents.files(run.state)
    from hexloop.app.assembly.state import exportables
    from hexloop.app.assembly.torch.saved_weights import saved_state
    from hexloop.app.callbacks import export_states

    parts = _session(subject).parts
    run.state.callbacks = export_states(subject.callback_handler.callbacks)
    return CheckpointContents(exportables(parts, run, saved_state(parts))).files(run.state)


def _tensors(data: bytes) -> Iterator[tuple[str, str, list[int], str]]:
    """Yield the tensors of a safetensors file: an 8-byte length, a JSON header of that length, then the data."""
    start = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            yield name, entry["dtype"], entry["shape"], b64encode(data[start + first : start + last]).decode()


def _comparable(state: dict[str, Any]) -> dict[str, Any]:
    """Return the run state without what differs between two equal runs."""
    history = [{name: value for name, value in entry.items() if not is_reading(name)} for entry in state["history"]]
    return {name: value for name, value in state.items() if name not in NOT_COMPARED} | {"history": history}
