"""The files of a model: its weights, its configuration, its processing class, the arguments, the state."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.app.storages import as_location, is_elsewhere, storage_for
from hexloop.app.training.hooks import is_overridden
from hexloop.app.training.sharded import is_sharded, own_class, save_sharded
from hexloop.ports.files import File
from hexloop.ports.storage import Storage

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer

ARGUMENTS = "training_args.json"
STATE = "trainer_state.json"
CHUNK = 1 << 20


def save_model(trainer: Trainer, folder: str, state_dict: Mapping[str, Any] | None = None) -> None:
    """Write the weights and everything that `from_pretrained(folder)` needs besides; creates the folder.

    Where the weights are spread over processes all of them call this, and the first writes what is not weights.
    state_dict: the weights, where they are others than the model's own.
    Where `folder` is a URL, the files are written here first, and what is there of their names is replaced.
    """
    if is_elsewhere(folder):
        with tempfile.TemporaryDirectory() as here:
            save_model(trainer, here, state_dict)
            replace(storage_of(trainer, folder), _files_in(here))
        return
    os.makedirs(folder, exist_ok=True)
    model = trainer.adapters.parallelism.unwrap(trainer.model)
    if is_sharded(trainer) and state_dict is None:
        save_sharded(trainer, folder)
        if not trainer.args.should_save:
            return
        _save_configuration(model, folder)
    elif hasattr(model, "save_pretrained"):
        model.save_pretrained(folder, **({} if state_dict is None else {"state_dict": state_dict}))
    else:
        named = ModelState(model).named_tensors() if state_dict is None else state_dict
        tensors = {name: tensor.detach().contiguous() for name, tensor in named.items()}
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    _save_processing_class(trainer, folder)
    Path(folder, ARGUMENTS).write_text(trainer.args.to_json_string() + "\n", encoding="utf-8")


def save_state(trainer: Trainer) -> None:
    """Write trainer_state.json to the output folder."""
    folder = str(trainer.args.output_dir)
    if is_elsewhere(folder):
        replace(storage_of(trainer, folder), [_state_file(trainer)])
        return
    os.makedirs(folder, exist_ok=True)
    trainer.state.save_to_json(os.path.join(folder, STATE))


def companion_files(trainer: Trainer) -> Iterator[File]:
    """What a checkpoint holds beside the weights and the run's own state: configuration, tokenizer, arguments, state.

    Of an adapter also its own files, which the library that made it loads; the weights are those of the whole model.
    Where `save_model` is overridden, also whatever it writes, unless hexloop writes a file of that name itself.
    """
    yield _text(ARGUMENTS, trainer.args.to_json_string())
    yield _state_file(trainer)
    with tempfile.TemporaryDirectory() as folder:
        if is_overridden(trainer, "save_model") or is_overridden(trainer, "_save"):
            trainer.save_model(folder, _internal_call=True)
        else:
            model = trainer.adapters.parallelism.unwrap(trainer.model)
            if _is_adapter(model) and not is_sharded(trainer):
                model.save_pretrained(folder)
            else:
                _save_configuration(model, folder)
            _save_processing_class(trainer, folder)
        yield from (file for file in _files_in(folder) if file.path not in (ARGUMENTS, STATE))


def storage_of(trainer: Trainer, url: str) -> Storage:
    """The storage for what is below a URL: the run's own where that is its."""
    own = as_location(url) == as_location(str(trainer.args.output_dir))
    return trainer.adapters.storage if own else storage_for(url)


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


def _state_file(trainer: Trainer) -> File:
    return _text(STATE, json.dumps(asdict(trainer.state), indent=2, sort_keys=True, default=float))


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


def _save_processing_class(trainer: Trainer, folder: str) -> None:
    """The processing class, or where there is none the tokenizer of the collator."""
    processing_class: Any = trainer.processing_class or getattr(trainer.data_collator, "tokenizer", None)
    if hasattr(processing_class, "save_pretrained"):
        processing_class.save_pretrained(folder)


def _text(name: str, text: str) -> File:
    return File(name, [f"{text}\n".encode()])


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
