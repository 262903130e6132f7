"""The files that a run leaves: model, configuration, tokenizer, arguments, state and metrics."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attrs import define

from hexloop.app.assembly.learner import EMA
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.state import is_sharded
from hexloop.app.assembly.storage import as_location, chunks_of, files_below, is_elsewhere, storage_for
from hexloop.app.notices import Notices
from hexloop.domain.errors import IrregularFileError, StorageError
from hexloop.domain.json_documents import read_bytes, read_json
from hexloop.domain.redaction import redacted
from hexloop.domain.regular_files import read_file, write_atomically
from hexloop.domain.run_folder import TRAINER_STATE
from hexloop.ports.storage import TRAINING_ARGUMENTS, File, Storage


def save_model(parts: TrainerParts, folder: str, state_dict: Mapping[str, Any] | None = None) -> None:
    """Write the weights and all other files that `from_pretrained(folder)` needs; create the folder if needed.

    If the model is sharded, all processes call this, and the first one writes what is not weights.
    state_dict: the weights to write instead of the model's own.
    If `folder` is a URL, the files are written to a temporary folder first, and replace those of the same names.
    """
    if is_elsewhere(folder):
        with tempfile.TemporaryDirectory() as temporary:
            save_model(parts, temporary, state_dict)
            _replace(_storage_for(parts, folder), _files_in(temporary))
        return
    os.makedirs(folder, exist_ok=True)
    policy = parts.adapters.framework.weights(parts.unwrapped_model)
    if state_dict is not None:
        policy.write(parts, folder, state_dict)
    else:
        with parts.averages.shown():
            policy.write(parts, folder)
        _write_averages_beside(parts, os.path.join(folder, EMA))
    if is_sharded(parts.adapters.parallelism, parts.model) and state_dict is None and not parts.args.should_save:
        return
    _save_processing_class(parts, folder)
    _write_privately(os.path.join(folder, TRAINING_ARGUMENTS), _without_secrets(parts.args.to_json_string()))
    logging.getLogger("hexloop").info("Saved the model to %s.", folder)


def _write_averages_beside(parts: TrainerParts, folder: str) -> None:
    """Write the averages of weights that are kept beside the trained ones, as a model of their own."""
    averages = parts.averages.weights
    if not averages.beside:
        return
    os.makedirs(folder, exist_ok=True)
    averages.show()
    try:
        parts.adapters.framework.weights(parts.unwrapped_model).write(parts, folder)
    finally:
        averages.hide()
    if parts.args.should_save:
        _save_processing_class(parts, folder)


def save_state(parts: TrainerParts, folder: str | None = None) -> None:
    """Write trainer_state.json to a folder, by default the output folder."""
    _write(parts, TRAINER_STATE, _state_document(parts), folder)


@define
class ArgumentsFile:
    """The file with a run's arguments, which is made again only if one of them changed, because that takes long."""

    _values: str = ""
    _data: bytes = b""

    def of(self, args: Any) -> File:
        """Return the file with these arguments."""
        values = repr(vars(args))
        if values != self._values:
            self._values, self._data = values, _without_secrets(args.to_json_string())
        return File(TRAINING_ARGUMENTS, [self._data])


def _write_privately(path: str, data: bytes) -> None:
    """Write a file that only its owner may read, from its creation on."""
    with suppress(FileNotFoundError):
        os.remove(path)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _without_secrets(document: str) -> bytes:
    return f"{json.dumps(redacted(json.loads(document)), indent=2)}\n".encode()


def companion_files(parts: TrainerParts, arguments: ArgumentsFile) -> Iterator[File]:
    """Yield the files of a checkpoint that are neither weights nor state: configuration, tokenizer, arguments, logs.

    arguments: keeps the file of the arguments between saves.
    What an overridden `save_model` or `_save` writes comes in its place; see `user_files`.
    """
    yield arguments.of(parts.args)
    yield File(TRAINER_STATE, [_state_document(parts)])
    if parts.hooks.writes_weights:
        return
    policy = parts.adapters.framework.weights(parts.unwrapped_model)
    if not (policy.has_files or hasattr(_processing_class(parts), "save_pretrained")):
        return
    with tempfile.TemporaryDirectory() as folder:
        with parts.averages.shown() if policy.has_adapters else nullcontext():
            policy.write_beside(parts, folder)
        _save_processing_class(parts, folder)
        written = [path for path in files_below(Path(folder)) if path not in (TRAINING_ARGUMENTS, TRAINER_STATE)]
        yield from (File(path, chunks_of(Path(folder, path))) for path in written)
        if parts.averages.weights.beside:  # without adapters of the trained weights
            beside = [path for path in written if not path.endswith(".safetensors")]
            yield from (File(f"{EMA}/{path}", chunks_of(Path(folder, path))) for path in beside)


def _storage_for(parts: TrainerParts, url: str) -> Storage:
    """Return the storage of a URL: the run's own if it is the output folder."""
    own = as_location(url) == parts.folder
    return parts.adapters.storage if own else storage_for(url)


def _replace(storage: Storage, files: Iterable[File]) -> None:
    """Write files, replacing those of the same names."""
    paths = []
    for file in files:
        storage.remove(file.path)
        storage.write(file.path, file.chunks)
        paths.append(file.path)
    storage.sync(paths)


def _files_in(folder: str) -> Iterator[File]:
    return (File(name, chunks_of(path)) for name, path in files_below(Path(folder)).items())


def _state_document(parts: TrainerParts) -> bytes:
    values = {each.name: getattr(parts.state, each.name) for each in fields(parts.state)}
    return f"{json.dumps(values, indent=2, sort_keys=True, default=float)}\n".encode()


def _processing_class(parts: TrainerParts) -> Any:
    """Return the processing class, or the tokenizer of the collator if there is none."""
    given = parts.processing_class
    return getattr(parts.data_collator, "tokenizer", None) if given is None else given


def _save_processing_class(parts: TrainerParts, folder: str) -> None:
    """Save the processing class."""
    processing_class = _processing_class(parts)
    if hasattr(processing_class, "save_pretrained"):
        processing_class.save_pretrained(folder)


# Metrics

ALL_RESULTS = "all_results.json"
"""The file with the metrics of every split."""

MEBI, GIBI = 1 << 20, 1 << 30

INTERVALS = ("logging_steps", "eval_steps", "save_steps")
"""The arguments that a state also holds."""


def readable(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return readable metrics: memory in MB, floating-point operations in GF, times as h:mm:ss, four decimals."""
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
    """Return the readable metrics under a heading, one a line in alphabetical order, aligned."""
    values = {name: str(value) for name, value in readable(metrics).items()}
    widest, longest = max(map(len, values), default=0), max(map(len, values.values()), default=0)
    lines = [f"  {name:<{widest}} = {values[name]:>{longest}}" for name in sorted(values)]
    return "\n".join([f"***** {split} metrics *****", *lines])


def save_metrics(parts: TrainerParts, split: str, metrics: Mapping[str, Any], combined: bool) -> None:
    """Write `<split>_results.json`, and with `combined` update all_results.json."""
    _write(parts, f"{split}_results.json", _document(metrics))
    if combined:
        _write(parts, ALL_RESULTS, _document({**_saved_results(parts), **metrics}))


def _document(metrics: Mapping[str, Any]) -> bytes:
    return json.dumps(metrics, indent=4, sort_keys=True).encode()


def _saved_results(parts: TrainerParts) -> dict[str, Any]:
    folder = parts.folder
    if is_elsewhere(folder):
        storage = _storage_for(parts, folder)
        exists = any(entry.name == ALL_RESULTS for entry in storage.list(""))
        text = read_bytes(storage.read(ALL_RESULTS)) if exists else b"{}"
    else:
        path = Path(folder, ALL_RESULTS)
        text = read_file(path) if path.exists() else b"{}"
    saved: dict[str, Any] = json.loads(text)
    return saved


def _write(parts: TrainerParts, name: str, data: bytes, folder: str | None = None) -> None:
    """Write a file of a folder, by default the output folder."""
    folder = folder or parts.folder
    if is_elsewhere(folder):
        _replace(_storage_for(parts, folder), [File(name, [data])])
    else:
        write_atomically(Path(folder, name), data)


def count_tokens(loader: Iterable[Any], max_steps: int | None) -> int:
    """Return the tokens under "input_ids" in the batches; see `Trainer.num_tokens`."""
    counted = 0
    try:
        for batch in loader:
            tokens = int(batch["input_ids"].numel())
            if max_steps is not None:
                return tokens * max_steps
            counted += tokens
    except KeyError:
        warnings.warn("The loader's tokens cannot be counted: its batches have no input_ids.", stacklevel=3)
        return 0
    return counted


def warn_of_other_arguments(parts: TrainerParts, storage: Storage, name: str) -> None:
    """Warn of the intervals and of the batch size that a resumed run does not have in common with its checkpoint."""
    with suppress(StorageError, ValueError, IrregularFileError):
        saved = read_json(read_bytes(storage.read(f"{name}/{TRAINER_STATE}")), finite=False)
        if not isinstance(saved, dict):
            return
        numbers = {each: saved.get(each) for each in (*INTERVALS, "train_batch_size")}
        if all(value is None or type(value) in (int, float) for value in numbers.values()):
            own = {each: getattr(parts.state, each) for each in INTERVALS}
            sizes = {each: getattr(parts.args, each) for each in ("per_device_train_batch_size", "n_gpu")}
            warn_of_differences(SimpleNamespace(**own, **sizes), SimpleNamespace(**numbers), parts.notices)


def warn_of_differences(args: Any, state: Any, notices: Notices) -> None:
    """Warn of each interval, and of the batch size, that differs between the arguments and a state, one a line."""
    pairs = [(name, getattr(args, name, None), getattr(state, name, None)) for name in INTERVALS]
    rows = None if state.train_batch_size is None else state.train_batch_size // max(1, args.n_gpu)
    pairs.append(("per_device_train_batch_size", args.per_device_train_batch_size, rows))
    found = [
        f"  {name}: {ours} (from args) != {theirs} (from {TRAINER_STATE})"
        for name, ours, theirs in pairs
        if ours is not None and theirs is not None and ours != theirs
    ]
    if found:
        notices.warn("intervals", "\n".join([f"These arguments differ from the checkpoint's {TRAINER_STATE}:", *found]))
