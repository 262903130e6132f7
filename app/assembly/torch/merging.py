"""Adapters merged into their base: a whole model, which needs PEFT no more."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from hexloop.adapters.contents import adapter_files
from hexloop.adapters.trainable.torch.adapter_state import ALLOCATOR
from hexloop.adapters.trainable.torch.base_digest import digest_of
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.peft_configurations import loads_more, without_patterns
from hexloop.adapters.trainable.torch.peft_tensors import adapter_tensors, base_names
from hexloop.adapters.trainable.torch.serialization import read_tensor
from hexloop.app.assembly.checkpoint_files import CheckpointFiles, is_run_file
from hexloop.app.assembly.storage import split_location, storage_for
from hexloop.domain.checkpoints.selection import open_checkpoint
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import read_json
from hexloop.domain.wording import listed
from hexloop.ports.state import Part
from hexloop.ports.storage import TRAINING_ARGUMENTS, Signatures

CARD = "README.md"
"""A card of the adapters, which would describe another model than the merged one."""


def merge_adapters(
    checkpoint: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    adapters: Sequence[str] = (),
    despite_digest: bool = False,
    signatures: Signatures | None = None,
) -> str:
    """Merge the adapters of a checkpoint into their base, and write the whole model to a new folder, which is returned.

    `from_pretrained` loads it, without PEFT. The tokenizer's files are copied.

    Args:
        checkpoint: the folder of the checkpoint.
        to: the new folder.
        base: the folder or name of the base; by default the one that the checkpoint names.
        adapters: those to merge, in this order; by default the only one, or the one named "default".
        despite_digest: merge into a base whose weights differ from those that the adapters were trained on. A base that
            was quantized in training is not compared.
        signatures: by which the checkpoint must be signed.

    Raises:
        CheckpointError: if the checkpoint is damaged or has no such adapters, if the base is unknown, is another one,
            or cannot be loaded, if adapters of this kind cannot be merged, and if the folder exists.
    """
    parent, name = split_location(os.fspath(checkpoint))
    source = CheckpointFiles.of(open_checkpoint(storage_for(parent, signatures=signatures), name))
    named = _base_in(source)
    location = os.fspath(base) if base is not None else named.get("name")
    chosen = _chosen(source, adapters, checkpoint)
    if location is None:
        raise CheckpointError(
            f"{os.fspath(checkpoint)} does not name the base of its adapters, which a program made without loading it; "
            "give its folder or name with base=... (--base)."
        )
    target = os.fspath(to)
    if os.path.lexists(target):
        raise CheckpointError(f"You chose to write {target}, but it exists already; choose another folder.")
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    staging = tempfile.mkdtemp(prefix=".unfinished-", dir=os.path.dirname(os.path.abspath(target)))
    try:
        with tempfile.TemporaryDirectory() as folder:
            lacking = [
                each for each in chosen if adapter_files.path_of(each, adapter_files.CONFIGURATION) not in source.files
            ]
            if lacking:
                raise CheckpointError(f"{checkpoint} has no configuration of the adapters {listed(lacking)}.")
            for path in filter(_is_adapters, source.files):
                _copy(source, path, folder)
            revision = named.get("revision") if base is None else None
            model = _with_adapters(_load_base(location, revision, named.get("dtype")), folder, chosen, source)
        if not despite_digest:
            _refuse_other_base(model, source, named, location)
        _merge(model, chosen).save_pretrained(staging)
        for path in _companions(source, staging):
            _copy(source, path, staging)
        os.chmod(staging, 0o755)
        os.rename(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _is_adapters(path: str) -> bool:
    of_adapter = os.path.basename(path) == adapter_files.CONFIGURATION and path.count("/") <= 1
    return of_adapter or adapter_files.adapter_in(path) is not None


def _base_in(source: CheckpointFiles) -> Mapping[str, Any]:
    found: Mapping[str, Any] = source.run_setup().get("base") or {}
    return found


def _chosen(source: CheckpointFiles, adapters: Sequence[str], checkpoint: object) -> list[str]:
    """Return the adapters to merge. Raises CheckpointError if the checkpoint does not have them."""
    found = adapter_files.adapters_among(list(source.files))
    if not found:
        raise CheckpointError(f"{checkpoint} has no adapters of PEFT to merge; its weights are whole.")
    chosen = list(adapters) or (found if len(found) == 1 else [adapter_files.DEFAULT])
    if missing := [each for each in chosen if each not in found]:
        raise CheckpointError(
            f"You chose the adapters {listed(chosen)}, but {checkpoint} does not have {listed(missing)}; name some of "
            f"{listed(found)} (--adapter)."
        )
    return chosen


def _load_base(location: str, revision: str | None, dtype: str | None) -> Any:
    """Return the base. No code of a repository is run."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(location, revision=revision)
        names = [each for each in getattr(config, "architectures", None) or () if hasattr(transformers, each)]
        if getattr(config, "quantization_config", None) is not None:
            raise ValueError(
                "its weights are quantized, and adapters are merged into others; name the base before that"
            )
        if not names:
            raise ValueError("its config.json names no class of transformers under architectures")
        kind, named = getattr(transformers, names[0]), getattr(torch, dtype or "", None)
        chosen = named if isinstance(named, torch.dtype) else "auto"
        return kind.from_pretrained(location, revision=revision, dtype=chosen)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"The base {location!r} cannot be loaded: {error}. Name another folder or model with base=... (--base)."
        ) from error


def _with_adapters(base: Any, folder: str, adapters: Sequence[str], source: CheckpointFiles) -> Any:
    """Return the base with the adapters, and with what else was trained."""
    from peft import PeftMixedModel, PeftModel
    from peft.config import PeftConfig

    folders = [folder if each == adapter_files.DEFAULT else os.path.join(folder, each) for each in adapters]
    for adapter, each in zip(adapters, folders, strict=True):
        path = os.path.join(each, adapter_files.CONFIGURATION)
        with open(path, "rb") as file:
            values = read_json(file.read())
        if entry := loads_more(values):
            raise CheckpointError(f"The adapters cannot be merged: by {entry}, PEFT would load other files or code.")
        try:
            named = without_patterns(values, dict(base.named_modules()), _names_of(source, adapter))
        except ValueError as error:
            raise CheckpointError(
                f"The adapter {adapter!r} cannot be merged: {error}; if you trust the file, merge with PEFT itself: "
                "PeftModel.from_pretrained(base, checkpoint).merge_and_unload()."
            ) from error
        with open(path, "w", encoding="utf-8") as file:
            json.dump(named, file)
    try:
        kinds = {PeftConfig.from_pretrained(each).peft_type for each in folders}
        wrap = PeftModel if len(kinds) == 1 else PeftMixedModel
        model = wrap.from_pretrained(base, folders[0], adapter_name=adapters[0])
        for name, each in zip(adapters[1:], folders[1:], strict=True):
            model.load_adapter(each, name)
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"The adapters do not fit the base: {error}.") from error
    own = model.state_dict()
    with torch.no_grad():
        for name, part in _beside(source):
            if name in own and own[name].shape == part.shape:
                own[name].copy_(read_tensor(part))
    return model


def _names_of(source: CheckpointFiles, adapter: str) -> Iterator[str]:
    """Yield the names of an adapter's tensors."""
    for part in source.parts("model"):
        place = adapter_files.placed(part.name)
        if place is not None and place[0] == adapter_files.path_of(adapter):
            yield place[1]


def _beside(source: CheckpointFiles) -> Iterator[tuple[str, Part]]:
    """Yield the names in the model of the tensors that are kept beside the adapters."""
    for part in source.parts("model"):
        place = adapter_files.placed(part.name)
        if place is not None and place[0] == adapter_files.STATE and not place[1].startswith(f"{ALLOCATOR}."):
            yield place[1], part


def _refuse_other_base(model: Any, source: CheckpointFiles, named: Mapping[str, Any], location: str) -> None:
    """Raise CheckpointError if the base has other weights than that of the training run, and can be compared."""
    if named.get("digest") is None or named.get("quantization") is not None:
        return
    trained = {name for name, _ in _beside(source)}
    kept = adapter_tensors(model, model.state_dict(keep_vars=True)).kept
    own = {name: each for name, each in ModelState(model).named_tensors().items() if name not in kept | trained}
    names = base_names(model, own)
    digest = digest_of({names[name]: each.detach() for name, each in own.items()})
    if digest != named["digest"]:
        raise CheckpointError(
            f"The adapters were trained on the base {named.get('name')!r} (revision {named.get('revision')}, digest "
            f"{named['digest']}), and {location!r} has other weights (digest {digest}); name the right one with "
            "base=... (--base), or accept the difference with despite_digest=True (--despite-digest)."
        )


def _merge(model: Any, adapters: Sequence[str]) -> Any:
    """Return the whole model. Raises CheckpointError for adapters that are no part of the weights."""
    kind = next(iter(model.peft_config.values()))
    if kind.is_prompt_learning or not hasattr(model.base_model, "merge_and_unload"):
        raise CheckpointError(
            f"Adapters of the kind {getattr(kind.peft_type, 'value', kind.peft_type)} cannot be merged: they are no "
            "change of the weights. Load them with PeftModel.from_pretrained(base, checkpoint)."
        )
    try:
        return model.merge_and_unload(safe_merge=True, adapter_names=list(adapters))
    except (NotImplementedError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"The adapters cannot be merged: {error}. Load them with PeftModel.from_pretrained(base, checkpoint)."
        ) from error


def _companions(source: CheckpointFiles, folder: str) -> Iterator[str]:
    """Yield the files of the tokenizer, and others that lie beside the adapters."""
    for path in source.files:
        own = is_run_file(path) or _is_adapters(path) or path in (TRAINING_ARGUMENTS, CARD, "model.json")
        is_new = not os.path.lexists(os.path.join(folder, path))
        if is_new and not own and "/" not in path and not path.endswith(".safetensors"):
            yield path


def _copy(source: CheckpointFiles, path: str, folder: str) -> None:
    target = os.path.join(folder, *path.split("/"))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.writelines(source.read(path))
