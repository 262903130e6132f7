"""What is saved of a model: one policy for each kind of model.

Saving, checkpoints, loading, publishing, export, import, loggers and model cards ask the policy and nothing else about
adapters or classes. To add one, derive from `SavedWeights` and put it before the others in `POLICIES`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import frozen
from safetensors.torch import save_file

from hexloop.adapters.contents.safetensors_files import is_weights
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.state import is_sharded
from hexloop.app.assembly.torch.state import (
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

SELF_SAVING = (("transformers.modeling_utils", "PreTrainedModel"), ("peft.peft_model", "PeftModel"))
"""The modules and names of the classes whose objects write their own files; loaded if there is such an object."""

ADAPTERS = "adapter_config.json", "adapter_model.safetensors"
"""The files of PEFT's adapters, which are published without the whole model."""


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

    def state(self, parts: TrainerParts) -> ExportableModel:
        """Return what a checkpoint of a run holds of the prepared model, and loads into it."""
        return model_state(parts)

    def own_state(self) -> ModelState:
        """Return the same of a model outside of a run."""
        return ModelState(self.model)

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
        if all(name in paths for name in ADAPTERS):
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


POLICIES: list[type[SavedWeights]] = [AdaptersBeside, SavedWeights]
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
