"""What is saved of a model: one policy for each kind of model.

Saving, checkpoints, loading, publishing, export, import, loggers and model cards ask the policy and nothing else about
adapters or classes. To add one, derive from `SavedWeights` and put it before the others in `POLICIES`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

from attrs import frozen
from safetensors.torch import save_file

from hexloop.adapters.contents import adapter_files
from hexloop.adapters.contents.adapter_files import is_adapter_file
from hexloop.adapters.contents.safetensors_files import is_weights
from hexloop.adapters.trainable.torch.adapter_state import AdapterState
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.peft_configurations import configuration
from hexloop.adapters.trainable.torch.peft_tensors import base_names, has_peft_adapters
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.state import is_sharded
from hexloop.app.assembly.torch.base_models import NamedBase, base_of, sharded_digest
from hexloop.app.assembly.torch.state import (
    layout_of,
    model_state,
    named_weights,
    on_host,
    own_class,
    save_sharded,
    separated,
    weights_to_write,
)
from hexloop.domain.errors import CheckpointError
from hexloop.ports.parallelism import ExportableModel
from hexloop.ports.state import JSON, Part

SELF_SAVING = (("transformers.modeling_utils", "PreTrainedModel"), ("peft.peft_model", "PeftModel"))
"""The modules and names of the classes whose objects write their own files; loaded if there is such an object."""


class OwnModelState(ExportableModel, Protocol):
    """The weights of a model outside of a run, into which a folder with other weights may be loaded."""

    def load_present(self, parts: Iterable[Part]) -> tuple[list[str], list[str]]:
        """Copy the parts that the model has; return the names that are missing, and those that are unknown."""


@frozen
class SavedWeights:
    """Everything: the policy for a model without adapters, and the base of the others.

    model: as the user passed it, without wrappers. name: noted in checkpoints, so that an export finds the policy; only
    a policy whose files mean something else needs one.
    """

    model: Any
    name: ClassVar[str] = ""

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Return whether this is the policy for a model, if none before it in `POLICIES` is."""
        return True

    @property
    def has_adapters(self) -> bool:
        """Whether the model has adapters, which are trained in place of its weights."""
        return False

    @property
    def adapters(self) -> Mapping[str, Any]:
        """The configurations of the model's adapters, by name; empty if it has none."""
        return getattr(self.model, "peft_config", None) or {}

    def saved_as(self, args: TrainingArguments) -> str:
        """Return the name that checkpoints with these arguments note."""
        return self.name

    def gathers(self, args: TrainingArguments) -> bool:
        """Return whether one process writes what is saved of the model, even if the model is sharded."""
        return False

    def state(self, parts: TrainerParts) -> ExportableModel:
        """Return what a checkpoint of a run holds of the prepared model, and loads into it."""
        return model_state(parts)

    def own_state(self) -> OwnModelState:
        """Return the same of a model outside of a run."""
        return ModelState(self.model)

    def base(self, parts: TrainerParts) -> NamedBase | None:
        """Return what identifies the base that checkpoints do not hold; None if they hold everything. Collective."""
        return None

    def write(self, parts: TrainerParts, folder: str, state_dict: Mapping[str, Any] | None = None) -> None:
        """Write the files that `from_pretrained(folder)` loads, with the weights in `state_dict` if given.

        Collective if the model is sharded.
        """
        if is_sharded(parts.adapters.parallelism, parts.model) and state_dict is None:
            save_sharded(parts, folder)
            if parts.args.should_save:
                self.write_configuration(folder)
        elif _writes_own_files(self.model):
            written = weights_to_write(self.model, state_dict)
            self.model.save_pretrained(folder, **({} if written is None else {"state_dict": written}))
        else:
            named: Mapping[str, Any] | None = None if state_dict is None else weights_to_write(self.model, state_dict)
            named = named_weights(self.model) if named is None else named
            named = {**named, **on_host(self.model, named)}
            tensors = {name: tensor.detach().contiguous() for name, tensor in named.items()}
            tensors |= separated(tensors)
            save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})

    @property
    def has_files(self) -> bool:
        """Whether there is something to write beside the weights."""
        return _writes_own_files(self.model)

    def write_beside(self, parts: TrainerParts, folder: str) -> None:
        """Write what a checkpoint has beside the weights that it holds, so that libraries load it."""
        self.write_configuration(folder)

    def write_configuration(self, folder: str) -> None:
        """Write config.json and generation_config.json of a transformers model, as its `save_pretrained` does."""
        model = self.model
        if not _writes_own_files(model):
            return
        config: Any = getattr(model, "config", None)
        if hasattr(config, "save_pretrained"):
            config.architectures = [own_class(model).__name__]
            config.dtype = str(model.dtype).removeprefix("torch.")
            config.save_pretrained(folder)
        if hasattr(model, "can_generate") and model.can_generate() and getattr(model, "generation_config", None):
            model.generation_config.save_pretrained(folder)

    @staticmethod
    def published(paths: Sequence[str]) -> list[str]:
        """Return which of a checkpoint's files of the model are published: adapters without the whole model."""
        if any(adapter_files.adapter_in(path) is not None for path in paths):
            return [path for path in paths if not is_weights(path)]
        return list(paths)

    @staticmethod
    def exported(paths: Sequence[str]) -> list[str]:
        """Return which of a checkpoint's files of the model are part of its export to transformers."""
        return list(paths)

    @classmethod
    def imported(cls, names: Sequence[str]) -> list[str]:
        """Return which files of a transformers checkpoint hold what this policy saves; empty if it has none of them."""
        return [] if cls.name else list(filter(is_weights, names))

    def complete_card(self, folder: str, library: str | None) -> None:
        """Let the library that an earlier model card in the folder names add to the new one."""


class AdaptersBeside(SavedWeights):
    """Everything, and beside it the adapters of PEFT in the form that PEFT loads."""

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Return whether a model is one of PEFT's, or one of transformers' that has adapters."""
        return _is_of_peft(model) or (bool(getattr(model, "peft_config", None)) and _writes_own_files(model))

    @property
    def has_adapters(self) -> bool:
        """Whether the model has adapters: it does."""
        return True

    def write_beside(self, parts: TrainerParts, folder: str) -> None:
        """Write the adapters; of a sharded model its configuration only."""
        if _writes_own_files(self.model) and not is_sharded(parts.adapters.parallelism, parts.model):
            self.model.save_pretrained(folder)  # of PEFT: only its adapters
        else:
            super().write_beside(parts, folder)

    def complete_card(self, folder: str, library: str | None) -> None:
        """Let PEFT complete a card of its own."""
        if library == "peft" and hasattr(self.model, "create_or_update_model_card"):
            self.model.create_or_update_model_card(folder)


class AdaptersAlone(AdaptersBeside):
    """Adapters of PEFT and what else is trained, in the files that PEFT loads, and no base; it is named by its digest.

    With `save_full_model` everything, and the adapters beside it.
    """

    name = "adapters"

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Return whether PEFT has put adapters into a model."""
        return has_peft_adapters(model)

    def saved_as(self, args: TrainingArguments) -> str:
        """Return the name of the policy if the whole model is not saved."""
        return "" if args.save_full_model else self.name

    def gathers(self, args: TrainingArguments) -> bool:
        """Return True for adapters: PEFT reads one file for each."""
        return not args.save_full_model

    def state(self, parts: TrainerParts) -> AdapterState:
        """Return what a checkpoint holds; a whole model and the adapters alone are both loaded."""
        make = partial(model_state, parts)
        return AdapterState(self.model, self._paths, make, layout_of(parts), full=parts.args.save_full_model)

    def own_state(self) -> AdapterState:
        """Return the same of a model outside of a run."""
        return AdapterState(self.model, self._paths)

    def base(self, parts: TrainerParts) -> NamedBase | None:
        """Return what identifies the base. If the run saves, its digest is computed: here if the model is sharded."""
        if parts.args.save_full_model:
            return None
        layout, state = layout_of(parts), self.state(parts)

        def together() -> str:
            names = state.base_names()
            renamed = base_names(self.model, dict.fromkeys(names))
            return sharded_digest(parts, model_state(parts, set(names).__contains__), renamed)

        found = base_of(self.model, state.base_names, layout, None if layout.whole else together)
        saves = str(getattr(parts.args.save_strategy, "value", parts.args.save_strategy)) != "no"
        if saves and (parts.adapters.mesh.writes or not layout.whole):
            found.start()
        return found

    def write(self, parts: TrainerParts, folder: str, state_dict: Mapping[str, Any] | None = None) -> None:
        """Write the adapters' files, and those that `from_pretrained(folder)` needs beside them."""
        sharded = is_sharded(parts.adapters.parallelism, parts.model)
        whole = sharded and parts.args.save_full_model
        if whole or state_dict is not None or not (sharded or self._cannot_save_itself):
            super().write(parts, folder, state_dict)
            return
        state = AdapterState(self.model, self._paths, partial(model_state, parts), layout_of(parts))
        exported = list(state.export())
        if parts.args.should_save:
            self.write_configuration(folder)
            published = (part for part in exported if part.dtype != JSON)
            for file in adapter_files.model_files(published, sys.maxsize, parts.adapters.mesh.rank, 1):
                if file.path != adapter_files.STATE:
                    path = os.path.join(folder, file.path)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "wb") as written:
                        written.writelines(file.chunks)

    def write_beside(self, parts: TrainerParts, folder: str) -> None:
        """Write the adapters' configurations and their card; with `save_full_model` the adapters, too."""
        if not parts.args.save_full_model:
            self._write_adapter_configurations(folder)
            if self.model not in _CARDS:
                self._write_card(folder)
                _CARDS[self.model] = _text_of(os.path.join(folder, CARD))
            elif (card := _CARDS[self.model]) is not None:
                with open(os.path.join(folder, CARD), "w", encoding="utf-8") as file:
                    file.write(card)
        elif not self._cannot_save_itself:
            super().write_beside(parts, folder)

    def write_configuration(self, folder: str) -> None:
        """Write the configuration of each adapter, and PEFT's card of the model."""
        self._write_card(folder)
        self._write_adapter_configurations(folder)

    def _write_card(self, folder: str) -> None:
        if hasattr(self.model, "create_or_update_model_card") and not self._cannot_save_itself:
            self.model.create_or_update_model_card(folder)

    def _write_adapter_configurations(self, folder: str) -> None:
        for adapter in self.model.peft_config:
            path = os.path.join(folder, self._paths.of(adapter, adapter_files.CONFIGURATION))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(configuration(self.model, adapter), file, indent=2, sort_keys=True)

    @property
    def has_files(self) -> bool:
        """Whether there is something to write beside the weights: there is."""
        return True

    @staticmethod
    def published(paths: Sequence[str]) -> list[str]:
        """Return the files without a whole model that lies beside the adapters."""
        return [path for path in paths if not is_weights(path)]

    @classmethod
    def imported(cls, names: Sequence[str]) -> list[str]:
        """Return the files of adapters, if there is no whole model beside them."""
        return [] if any(map(is_weights, names)) else list(filter(is_adapter_file, names))

    @property
    def _cannot_save_itself(self) -> bool:
        """Whether the model is a mixed one of PEFT, whose `save_pretrained` is not implemented."""
        return isinstance(self.model, getattr(sys.modules.get("peft"), "PeftMixedModel", ()))

    @property
    def _paths(self) -> AdapterPaths:
        """Where the files of each adapter are: as PEFT's and transformers' `save_pretrained` put them."""
        adapters = list(self.model.peft_config)
        plain = bool(getattr(self.model, "_hf_peft_config_loaded", False))
        alone = plain and len(adapters) == 1
        return AdapterPaths(adapters[0] if alone else adapter_files.DEFAULT)


CARD = "README.md"
"""PEFT's card of a model."""

_CARDS = WeakKeyDictionary[Any, str | None]()
"""The cards in checkpoints, by model: PEFT takes longer to make one than a small adapter to save."""


def _text_of(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


@frozen
class AdapterPaths:
    """Implements `hexloop.adapters.trainable.torch.adapter_state.Paths`.

    at_root: the adapter whose files are not in a folder of their own.
    """

    at_root: str = adapter_files.DEFAULT
    state: str = adapter_files.STATE

    def of(self, adapter: str, name: str = adapter_files.WEIGHTS) -> str:
        """Return the path of a file of an adapter."""
        return name if adapter == self.at_root else f"{adapter}/{name}"

    def named_in_folder(self, name: str) -> str:
        """Return the adapter that an import has named by the folder of its file."""
        return self.at_root if name == adapter_files.DEFAULT else name

    def split(self, name: str) -> tuple[str, str] | None:
        """Return the path and the name in the file; None for the name of a tensor of a whole model."""
        return adapter_files.placed(name)

    def adapter(self, path: str) -> str | None:
        """Return the adapter whose tensors are in a file; None for another file."""
        found = adapter_files.adapter_in(path)
        return self.at_root if found == adapter_files.DEFAULT and path == adapter_files.WEIGHTS else found


POLICIES: list[type[SavedWeights]] = [AdaptersAlone, AdaptersBeside, SavedWeights]
"""The first one that fits a model is its policy."""


def saved_weights(model: Any) -> SavedWeights:
    """Return the policy for a model without wrappers."""
    return next(policy for policy in POLICIES if policy.fits(model))(model)


def policy_of(name: str | None) -> type[SavedWeights]:
    """Return the policy that a checkpoint was saved by. Raises CheckpointError if this program does not have it."""
    if not name:
        return SavedWeights
    for policy in POLICIES:
        if policy.name == name:
            return policy
    raise CheckpointError(
        f"The checkpoint holds what the policy {name!r} saves of a model, which this program does not have; import the "
        "module that adds it to hexloop.app.assembly.torch.saved_weights.POLICIES first."
    )


def policy_for_files(names: Sequence[str]) -> type[SavedWeights]:
    """Return the policy that saves what files of a transformers checkpoint hold."""
    return next((policy for policy in POLICIES if policy.imported(names)), SavedWeights)


def saved_state(parts: TrainerParts) -> ExportableModel:
    """Return what is saved of a run's model, and loaded into it."""
    return saved_weights(parts.unwrapped_model).state(parts)


def _writes_own_files(model: Any) -> bool:
    """Return whether a model is one of transformers or PEFT, whose `save_pretrained` writes what they load.

    A method of that name of any other model may expect or write something else.
    """
    found = (getattr(sys.modules.get(module), name, ()) for module, name in SELF_SAVING)
    return any(isinstance(model, kind) for kind in found)


def _is_of_peft(model: Any) -> bool:
    """Return whether a model is one of PEFT's; its package is loaded in that case."""
    peft = sys.modules.get("peft")
    return any(isinstance(model, getattr(peft, name, ())) for name in ("PeftModel", "PeftMixedModel"))
