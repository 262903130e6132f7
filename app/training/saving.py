"""The files of a model: its weights, its configuration, its processing class, the arguments, the state."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.app.storages import as_location, is_elsewhere, storage_for
from hexloop.app.training.sharded import is_sharded, own_class, save_sharded
from hexloop.app.wiring.parts import TrainerParts
from hexloop.ports.files import File
from hexloop.ports.storage import Storage

ARGUMENTS = "training_args.json"
STATE = "trainer_state.json"
CHUNK = 1 << 20


def save_model(parts: TrainerParts, folder: str, state_dict: Mapping[str, Any] | None = None) -> None:
    """Write the weights and everything that `from_pretrained(folder)` needs besides; creates the folder.

    Where the weights are spread over processes all of them call this, and the first writes what is not weights.
    state_dict: the weights, where they are others than the model's own.
    Where `folder` is a URL, the files are written here first, and what is there of their names is replaced.
    """
    if is_elsewhere(folder):
        with tempfile.TemporaryDirectory() as here:
            save_model(parts, here, state_dict)
            replace(storage_of(parts, folder), _files_in(here))
        return
    os.makedirs(folder, exist_ok=True)
    model = parts.adapters.parallelism.unwrap(parts.model)
    if is_sharded(parts.adapters.parallelism, parts.model) and state_dict is None:
        save_sharded(parts, folder)
        if not parts.args.should_save:
            return
        _save_configuration(model, folder)
    elif hasattr(model, "save_pretrained"):
        model.save_pretrained(folder, **({} if state_dict is None else {"state_dict": state_dict}))
    else:
        named = ModelState(model).named_tensors() if state_dict is None else state_dict
        tensors = {name: tensor.detach().contiguous() for name, tensor in named.items()}
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    _save_processing_class(parts, folder)
    Path(folder, ARGUMENTS).write_text(parts.args.to_json_string() + "\n", encoding="utf-8")


def save_state(parts: TrainerParts) -> None:
    """Write trainer_state.json to the output folder."""
    folder = str(parts.args.output_dir)
    if is_elsewhere(folder):
        replace(storage_of(parts, folder), [_state_file(parts)])
        return
    os.makedirs(folder, exist_ok=True)
    parts.state.save_to_json(os.path.join(folder, STATE))


def companion_files(parts: TrainerParts) -> Iterator[File]:
    """What a checkpoint holds beside the weights and the run's own state: configuration, tokenizer, arguments, state.

    Of an adapter also its own files, which the library that made it loads; the weights are those of the whole model.
    Where `save_model` is overridden, also whatever it writes, unless hexloop writes a file of that name itself.
    """
    yield _text(ARGUMENTS, parts.args.to_json_string())
    yield _state_file(parts)
    with tempfile.TemporaryDirectory() as folder:
        if parts.hooks.save_model.overridden or parts.hooks.save.overridden:
            parts.hooks.save_model(folder, _internal_call=True)
        else:
            model = parts.adapters.parallelism.unwrap(parts.model)
            if _is_adapter(model) and not is_sharded(parts.adapters.parallelism, parts.model):
                model.save_pretrained(folder)
            else:
                _save_configuration(model, folder)
            _save_processing_class(parts, folder)
        yield from (file for file in _files_in(folder) if file.path not in (ARGUMENTS, STATE))


def storage_of(parts: TrainerParts, url: str) -> Storage:
    """The storage for what is below a URL: the run's own where that is its."""
    own = as_location(url) == as_location(str(parts.args.output_dir))
    return parts.adapters.storage if own else storage_for(url)


def replace(storage: Storage, files: Iterable[File]) -> None:
    """Write files in the place of those that have their names."""
    for file in files:
        storage.remove(file.path)
        storage.write(file.path, file.chunks)


def _files_in(folder: str) -> Iterator[File]:
    """Every file below a folder of this machine."""
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            yield File(path.relative_to(folder).as_posix(), _chunks(path))


def _state_file(parts: TrainerParts) -> File:
    return _text(STATE, json.dumps(asdict(parts.state), indent=2, sort_keys=True, default=float))


def _is_adapter(model: Any) -> bool:
    """Whether the model is one with adapters of PEFT, which writes these alone."""
    return bool(getattr(model, "peft_config", None)) and hasattr(model, "save_pretrained")


def _save_configuration(model: Any, folder: str) -> None:
    """config.json and generation_config.json of a transformers model, as its `save_pretrained` writes them."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        config.architectures = [own_class(model).__name__]
        config.dtype = str(model.dtype).removeprefix("torch.")
        config.save_pretrained(folder)
    if hasattr(model, "can_generate") and model.can_generate() and getattr(model, "generation_config", None):
        model.generation_config.save_pretrained(folder)


def _save_processing_class(parts: TrainerParts, folder: str) -> None:
    """The processing class, or where there is none the tokenizer of the collator."""
    processing_class: Any = parts.processing_class or getattr(parts.data_collator, "tokenizer", None)
    if hasattr(processing_class, "save_pretrained"):
        processing_class.save_pretrained(folder)


def _text(name: str, text: str) -> File:
    return File(name, [f"{text}\n".encode()])


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
