"""A run, driven from its beginning or from a checkpoint, and what is noted of it."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, SupportsFloat, cast

from attrs import define, field

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.events import AnyEvent, StepEnded, TrainBegan, TrainEnded
from hexloop.domain.loop import train
from hexloop.domain.run import Run
from hexloop.domain.state import RunState
from hexloop.ports.files import File

Cut = Callable[[AnyEvent], bool]
"""Whether the run is to be saved and cut at this event."""

CLOCK_AND_MEMORY = ("runtime", "per_second", "_mem_cpu_", "_mem_gpu_")
NOT_COMPARED = ("run", "parent_checkpoint", "best_checkpoint", "gradient_norm")
"""What tells one run or its folders from another, or is noted for its checkpoints alone."""

DATA = ("data", "batches")
"""Data may describe one place in two ways. What they give is compared at every step."""


@define
class Record:
    """What two runs are compared by; all of it is JSON.

    steps: what each step saw and gave. began_at: the step after which the recording began.
    values: by its name, what is not a tensor at the end. tensors: (dtype, shape, bytes in base64) at the end.
    """

    steps: dict[int, dict[str, Any]] = field(factory=dict)
    began_at: int = 0
    values: dict[str, Any] = field(factory=dict)
    tensors: dict[str, tuple[str, list[int], str]] = field(factory=dict)

    @property
    def last_step(self) -> int:
        """The last step that was taken."""
        return max(self.steps, default=self.began_at)


def step_is(step: int) -> Cut:
    """At the end of a step."""
    return lambda event: isinstance(event, StepEnded) and event.step == step


def record_run(subject: Any, resume: bool = False, cut: Cut | None = None, stop: bool = False) -> Record:
    """Drive a Trainer or a Run to its end, or to the first event that `cut` names.

    There a checkpoint is asked for, and the run is left as soon as it is complete; with `stop` it is stopped instead,
    which is a way of ending it.
    """
    record, batches, asked = Record(), list[dict[str, str]](), None
    with closing(_events(subject, resume)) as events:
        for event in events:
            run = subject if isinstance(subject, Run) else subject._session.run
            if isinstance(event, TrainBegan):
                record.began_at = event.step
                run.counters = [*run.counters, lambda batch: batches.append(dict(_fingerprints("", batch)))]
            elif isinstance(event, StepEnded):
                record.steps[event.step] = _noted(event, run.state, batches)
                batches.clear()
            elif isinstance(event, TrainEnded) and cut is None:
                _note_end(record, subject, run)
            if cut is not None and asked is None and cut(event):
                asked = run.requests.request_save()
                if stop:
                    run.requests.request_stop("to be resumed")
            if asked is not None and asked.done and not stop:
                break
    if asked is not None:
        asked.wait(60)  # whoever asked learns here why there is no checkpoint
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


def _store(run: Run[Any, Any]) -> CheckpointStore:
    if not isinstance(run.checkpoints, CheckpointStore):
        raise ValueError(
            f"The job made a run whose checkpoints is {type(run.checkpoints).__name__}, so nothing can be resumed; "
            "give it a CheckpointStore on the folder that the job is given."
        )
    return run.checkpoints


def _noted(event: StepEnded, state: RunState, batches: list[dict[str, str]]) -> dict[str, Any]:
    norm = cast("SupportsFloat | None", event.gradient_norm)
    return {
        "batch": list(batches),
        "loss": [repr(float(cast(SupportsFloat, loss))) for loss in event.losses],
        "gradient norm": None if norm is None else repr(float(norm)),
        "learning rate": state.learning_rate,
        "update taken": event.taken,
    }


def _fingerprints(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Each tensor of a batch by its name, as a digest; what is no tensor by how it prints."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _fingerprints(f"{path}.{name}" if path else str(name), each)
    elif isinstance(value, list | tuple) and any(hasattr(each, "detach") for each in value):
        for number, each in enumerate(value):
            yield from _fingerprints(f"{path}[{number}]", each)
    elif hasattr(value, "detach"):
        import torch

        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        yield path, f"{value.dtype} {tuple(value.shape)} {hashlib.blake2b(data, digest_size=8).hexdigest()}"
    else:
        yield path, hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _note_end(record: Record, subject: Any, run: Run[Any, Any]) -> None:
    """Everything that a checkpoint would hold now."""
    for file in _files(subject, run):
        data = b"".join(bytes(chunk) for chunk in file.chunks)
        name, _, kind = file.path.rpartition(".")
        if name in DATA:
            continue
        if kind == "safetensors":
            record.tensors.update({f"{name}: {tensor}": each for tensor, *each in _tensors(data)})  # type: ignore[misc]
        else:
            record.values[name] = json.loads(data)
    record.values["run_state"] = _comparable(record.values["run_state"])


def _files(subject: Any, run: Run[Any, Any]) -> Iterable[File]:
    if isinstance(subject, Run):
        return _store(subject).contents.files(run.state)
    from hexloop.app.callbacks import export_states
    from hexloop.app.resume_exactness.trainers import exportables

    run.state.callbacks = export_states(subject.callback_handler.callbacks)
    return CheckpointContents(exportables(subject)).files(run.state)


def _tensors(data: bytes) -> Iterator[tuple[str, str, list[int], str]]:
    """The tensors of a safetensors file: an 8-byte length, a JSON header of that length, then the tensors' bytes."""
    start = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            yield name, entry["dtype"], entry["shape"], b64encode(data[start + first : start + last]).decode()


def _comparable(state: dict[str, Any]) -> dict[str, Any]:
    """The run's state without what two equal runs differ in."""
    history = [{name: value for name, value in entry.items() if not _is_reading(name)} for entry in state["history"]]
    return {name: value for name, value in state.items() if name not in NOT_COMPARED} | {"history": history}


def _is_reading(name: str) -> bool:
    return name.endswith(CLOCK_AND_MEMORY[:2]) or any(word in name for word in CLOCK_AND_MEMORY[2:])
