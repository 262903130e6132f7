"""The metrics of a script's parts: on the console, and in files of the output folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from hexloop.app.storages import is_elsewhere
from hexloop.app.training.saving import replace, storage_of
from hexloop.app.training.whole_files import write_whole
from hexloop.app.wiring.parts import TrainerParts
from hexloop.ports.files import File

TOGETHER = "all_results.json"
"""The file with the metrics of every split."""

MEBI, GIBI = 1 << 20, 1 << 30

RHYTHMS = ("logging_steps", "eval_steps", "save_steps")
"""The arguments that a state repeats."""


def readable(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as people read them: memory in MB, floating-point operations in GF, times as h:mm:ss, four decimals."""
    return {name: _readable(name, value) for name, value in metrics.items()}


def _readable(name: str, value: Any) -> Any:
    if "_mem_" in name:
        return f"{int(value) // MEBI}MB"
    if "_runtime" in name:
        return f"{timedelta(seconds=int(value))}.{int(abs(value - int(value)) * 100):02d}"
    if name == "total_flos":
        return f"{int(value) // GIBI}GF"
    return round(value, 4) if isinstance(value, float) else value


def table(split: str, metrics: Mapping[str, Any]) -> str:
    """The readable metrics under a heading, a line each in alphabetical order, names and values aligned."""
    values = {name: str(value) for name, value in readable(metrics).items()}
    widest, longest = max(map(len, values), default=0), max(map(len, values.values()), default=0)
    lines = [f"  {name:<{widest}} = {values[name]:>{longest}}" for name in sorted(values)]
    return "\n".join([f"***** {split} metrics *****", *lines])


def save(parts: TrainerParts, split: str, metrics: Mapping[str, Any], combined: bool) -> None:
    """Write `<split>_results.json`, and with `combined` bring all_results.json up to date."""
    _write(parts, f"{split}_results.json", metrics)
    if combined:
        _write(parts, TOGETHER, {**_saved_together(parts), **metrics})


def _saved_together(parts: TrainerParts) -> dict[str, Any]:
    folder = str(parts.args.output_dir)
    if is_elsewhere(folder):
        storage = storage_of(parts, folder)
        there = any(entry.name == TOGETHER for entry in storage.list(""))
        text = b"".join(storage.read(TOGETHER)) if there else b"{}"
    else:
        path = Path(folder, TOGETHER)
        text = path.read_bytes() if path.exists() else b"{}"
    saved: dict[str, Any] = json.loads(text)
    return saved


def _write(parts: TrainerParts, name: str, metrics: Mapping[str, Any]) -> None:
    folder, data = str(parts.args.output_dir), json.dumps(metrics, indent=4, sort_keys=True).encode()
    if is_elsewhere(folder):
        replace(storage_of(parts, folder), [File(name, [data])])
    else:
        write_whole(Path(folder, name), data)


def count_tokens(loader: Iterable[Any], max_steps: int | None) -> int:
    """The tokens under "input_ids" in all batches; with `max_steps`, so many times those of the first batch.

    Raises KeyError where a batch has none.
    """
    counted = 0
    for batch in loader:
        tokens = int(batch["input_ids"].numel())
        if max_steps is not None:
            return tokens * max_steps
        counted += tokens
    return counted


def differences(args: Any, state: Any) -> list[str]:
    """What of a run's rhythm and batch size differs between its arguments and the state that it goes on from."""
    pairs = [(name, getattr(args, name, None), getattr(state, name, None)) for name in RHYTHMS]
    rows = None if state.train_batch_size is None else state.train_batch_size // max(1, args.n_gpu)
    pairs.append(("per_device_train_batch_size", args.per_device_train_batch_size, rows))
    return [
        f"{name} is {ours} in the arguments and {theirs} in the checkpoint"
        for name, ours, theirs in pairs
        if ours is not None and theirs is not None and ours != theirs
    ]
