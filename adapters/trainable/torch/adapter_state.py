"""The state of a model with adapters of PEFT: the adapters, and what else training changes, without the base."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from attrs import evolve, frozen
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.peft_configurations import add_frozen, check_name, configuration, harmless
from hexloop.adapters.trainable.torch.peft_tensors import (
    IMPORTANCES,
    AdapterTensors,
    adapter_tensors,
    allocators,
    computed_tensors,
    set_from_files,
    trained_names,
)
from hexloop.adapters.trainable.torch.serialization import read_tensor, tensor_part
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.domain.json_documents import json_part, json_value
from hexloop.ports.parallelism import ExportableModel
from hexloop.ports.state import JSON, Part

DOCUMENT = "adapters"
"""The name of the JSON document with the adapters' configurations."""

ALLOCATOR = "rank_allocator"
"""Begins the names of the tensors by which AdaLoRA decides on ranks."""


class Paths(Protocol):
    """How the tensors of adapters are named in a checkpoint: by the path of their file and their name in it."""

    def of(self, adapter: str) -> str:
        """Return the path of the file with an adapter's tensors."""

    def named_in_folder(self, name: str) -> str:
        """Return the adapter that an import has named by the folder of its file."""

    @property
    def state(self) -> str:
        """The path of the file with everything else that is kept of the model."""

    def split(self, name: str) -> tuple[str, str] | None:
        """Return the path and the name in the file; None for the name of a tensor of a whole model."""

    def adapter(self, path: str) -> str | None:
        """Return the adapter whose tensors are in a file; None for another file."""


@frozen
class SavedAdapters:
    """What a checkpoint has of adapters.

    own: the tensors of the model, under their names in the model. files: those in files of PEFT's, by adapter.
    importances: those by which AdaLoRA decides on ranks. configurations: of the adapters, by name. ranks: which AdaLoRA
    has decided on. whole: hexloop wrote it, so that nothing may be missing.
    """

    own: dict[str, Part]
    files: dict[str, dict[str, Part]]
    importances: dict[str, Part]
    configurations: Mapping[str, Any]
    ranks: Mapping[str, Any]
    whole: bool
    extra: list[Part]


class AdapterState:
    """Implements the ExportableModel port for a model with adapters of PEFT.

    It exports the adapters as PEFT's files have them, and beside them what else is not the base as it was loaded:
    parameters of the base that are trained, buffers that a forward pass may change, extra state, prompt encoders, and
    the importances by which AdaLoRA decides on ranks. It loads such state, an adapter's file of PEFT's alone, or the
    state of a whole model. Adapters of the checkpoint that the model lacks are added to it, frozen.

    make: returns what exports and loads the tensors of the model for whose names the function that it is given returns
    True, or all for None. layout: how the tensors are distributed. paths: how tensors are named in a checkpoint.
    full: export the whole model instead.
    """

    def __init__(
        self,
        model: nn.Module,
        paths: Paths,
        make: Callable[[Callable[[str], bool] | None], ExportableModel] | None = None,
        layout: TorchLayout = WHOLE,
        full: bool = False,
    ) -> None:
        self._model, self._layout, self._paths, self._full = model, layout, paths, full
        self._make = make or (lambda kept: ModelState(model, layout, kept=kept))
        self._whole = self._make(None)
        self._names: set[str] = set()
        self._kept = self._make(self._names.__contains__)
        self._described: AdapterTensors | None = None
        self._adapters: tuple[str, ...] = ()

    @property
    def _tensors(self) -> AdapterTensors:
        """Which tensors are kept; looked up again if an adapter was added or removed."""
        adapters: tuple[str, ...] = tuple(self._model.peft_config)  # type: ignore[arg-type]
        if self._described is None or adapters != self._adapters:
            described = adapter_tensors(self._model, self._layout.state(self._model))
            self._refuse_unnamed(described)
            self._described, self._adapters = described, adapters
            self._names.update(described.kept)
        return self._described

    def _refuse_unnamed(self, described: AdapterTensors) -> None:
        if self._layout.whole:
            return
        computed = {adapter for adapter, _ in described.computed}
        if computed:
            raise ConfigurationError(
                f"The file of the adapter {min(computed)!r} holds what is computed from its weights (prompts, or the "
                "rows that AdaLoRA keeps), and no process has all of them; spread the model by DDP or ZeRO 2, or set "
                "save_full_model=True."
            )
        if lacking := set(self._adapters_of_model()) - {adapter for adapter, _ in described.files}:
            raise ConfigurationError(
                f"PEFT does not find the tensors of the adapter {min(lacking)!r} in the prepared model; choose FSDP "
                "version 2, or set save_full_model=True."
            )

    def _adapters_of_model(self) -> Sequence[str]:
        return tuple(self._model.peft_config)  # type: ignore[arg-type]

    def base_names(self) -> list[str]:
        """Return the names in the model of the base's tensors, which are not saved."""
        kept = self._tensors.kept
        state = ModelState(self._model, self._layout).named_tensors()
        return [name for name in state if name not in kept]

    # Export

    def export(self) -> Iterator[Part]:
        """Export the adapters, the rest of what is kept, and a document; or the whole model."""
        if self._full:
            yield from self._whole.export()
            return
        tensors = self._tensors
        self._names.update(trained_names(self._model))
        computed = {} if not self._layout.whole else computed_tensors(self._model, tensors.computed)
        by_owner: dict[str, list[str]] = {}
        for (adapter, name), owner in tensors.files.items():
            if (adapter, name) not in computed:
                by_owner.setdefault(owner, []).append(f"{self._paths.of(adapter)}/{name}")
        for part in self._kept.export():
            for name in by_owner.get(part.name, [f"{self._paths.state}/{part.name}"]):
                yield part if part.dtype == JSON else evolve(part, name=name)
        for (adapter, name), tensor in computed.items():
            yield tensor_part(f"{self._paths.of(adapter)}/{name}", tensor.contiguous())
        for name, tensor in self._importances().items():
            yield tensor_part(f"{self._paths.state}/{name}", tensor.contiguous())
        yield json_part(DOCUMENT, self._document())

    def _document(self) -> dict[str, Any]:
        found = self._model.peft_config
        return {
            "configurations": {name: configuration(self._model, name) for name in found},  # type: ignore[union-attr]
            "ranks": {name: found[name].rank_pattern for name in allocators(self._model)},  # type: ignore[index, union-attr]
        }

    def _importances(self) -> dict[str, Tensor]:
        return {
            f"{ALLOCATOR}.{adapter}.{kind}.{name}": tensor
            for adapter, allocator in allocators(self._model).items()
            for kind in IMPORTANCES
            for name, tensor in getattr(allocator, kind).items()
        }

    # Loading

    def load(self, parts: Iterable[Part]) -> None:
        """Copy what was saved into the model's own tensors.

        Raises ValueError, changing no tensor, if something is missing, unknown or of another shape.
        """
        parts = list(parts)
        if not self._are_adapters(parts):
            self._whole.load(parts)
            return
        self._add_missing(parts)
        saved = self._saved(parts)
        self._refuse_unknown(saved)
        computed = {adapter for adapter, _ in self._tensors.computed} & saved.files.keys()
        names, from_files = self._names.copy(), computed if not saved.whole else set()
        try:
            self._names.update(saved.own)
            if not saved.whole:
                self._names.intersection_update(saved.own)
            self._kept.load([*saved.own.values(), *saved.extra])
        finally:
            self._names.update(names)
        for adapter in from_files:
            tensors = {name: read_tensor(part) for name, part in saved.files[adapter].items()}
            set_from_files(self._model, adapter, tensors)
        self._load_ranks(saved)

    def load_present(self, parts: Iterable[Part]) -> tuple[list[str], list[str]]:
        """Copy the parts that the model has; return the names that are missing, and those that are unknown.

        Raises ValueError, changing no tensor, if a shape differs.
        """
        parts = list(parts)
        if not self._are_adapters(parts):
            return ModelState(self._model, self._layout).load_present(parts)
        self._add_missing(parts)
        saved = self._saved(parts)
        found = ModelState(self._model, self._layout, kept=self._names.__contains__)
        missing, unknown = found.load_present([*saved.own.values(), *saved.extra])
        for adapter in {adapter for adapter, _ in self._tensors.computed} & saved.files.keys():
            if not saved.whole:
                tensors = {name: read_tensor(part) for name, part in saved.files[adapter].items()}
                set_from_files(self._model, adapter, tensors)
        wanted = set(self._tensors.files.values())
        return [name for name in missing if saved.whole or name in wanted], unknown

    def differences(self, parts: Sequence[Part], types: bool = False) -> list[str]:
        """Return how saved tensors differ from the model's: missing, unknown, other shapes and optionally types."""
        if not self._are_adapters(parts):
            return self._whole.differences(parts, types)
        saved = self._saved(parts)
        problems = [f"the tensor {name!r} is not in the model" for name in self._unknown(saved)]
        if (missing := self._lacking(saved)) and not self._layout.whole:
            problems.append(
                f"the checkpoint has the adapter {missing[0]!r}, which can only be added to a model that is not "
                "sharded; add it before you resume"
            )
        for adapter in self._lacking(saved):
            try:
                harmless(self._model, adapter, saved.configurations[adapter])
            except ValueError as error:
                problems.append(str(error))
        names = self._names.copy()
        try:
            self._names.update(self._tensors.kept, trained_names(self._model), saved.own)
            if not saved.whole:
                self._names.intersection_update({*saved.own, *self._in_files(saved)})
            return problems + self._kept.differences([*saved.own.values(), *saved.extra], types)
        finally:
            self._names.clear()
            self._names.update(names)

    def _in_files(self, saved: SavedAdapters) -> set[str]:
        """Return the names in the model of what PEFT's files of these adapters hold."""
        computed = {adapter for adapter, _ in self._tensors.computed}
        return {own for (adapter, _), own in self._tensors.files.items() if adapter not in computed}

    def _are_adapters(self, parts: Sequence[Part]) -> bool:
        return any(self._paths.split(part.name) is not None for part in parts)

    def _saved(self, parts: Sequence[Part]) -> SavedAdapters:
        """Return what a checkpoint has, by what it is. What an adapter has that the model lacks is left out."""
        document = next((json_value(part) for part in parts if part.name == DOCUMENT), None)
        found = document if isinstance(document, dict) else {}
        configurations, ranks, whole = found.get("configurations", {}), found.get("ranks", {}), "ranks" in found
        if not isinstance(configurations, dict) or not isinstance(ranks, dict):
            raise CheckpointError("The checkpoint's document of the adapters is not one.")
        if not whole:  # an import names adapters by their folders
            configurations = {self._paths.named_in_folder(name): its for name, its in configurations.items()}
        lacking = {check_name(name) for name in configurations if name not in self._adapters_of_model()}
        tensors, own, importances = self._tensors, dict[str, Part](), dict[str, Part]()
        files: dict[str, dict[str, Part]] = {}
        for part in parts:
            if part.dtype == JSON or (place := self._paths.split(part.name)) is None:
                continue
            path, name = place
            adapter = self._paths.adapter(path)
            if adapter is not None:
                files.setdefault(adapter, {})[name] = part
            elif name.startswith(f"{ALLOCATOR}."):
                importances[name] = part
            elif not any(f".{each}." in f"{name}." for each in lacking):
                own[name] = evolve(part, name=name)
        for adapter, its in files.items():
            for name, part in its.items():
                if (owner := tensors.files.get((adapter, name))) is not None and owner not in own:
                    own[owner] = evolve(part, name=owner)
        extra = [part for part in parts if part.dtype == JSON and part.name != DOCUMENT]
        return SavedAdapters(own, files, importances, configurations, ranks, whole, extra)

    def _unknown(self, saved: SavedAdapters) -> list[str]:
        """Return the tensors of PEFT's files that the model's adapters do not have."""
        tensors, lacking = self._tensors, set(saved.configurations) - set(self._adapters_of_model())
        return [
            f"{self._paths.of(adapter)}/{name}"
            for adapter, its in saved.files.items()
            if adapter not in lacking
            for name in its
            if (adapter, name) not in tensors.files and (adapter, name) not in tensors.computed
        ]

    def _refuse_unknown(self, saved: SavedAdapters) -> None:
        if unknown := self._unknown(saved):
            raise ValueError(f"The saved adapters do not fit the model, which does not have {', '.join(unknown[:8])}.")

    def _lacking(self, saved: SavedAdapters) -> list[str]:
        """Return the adapters of a checkpoint that the model does not have."""
        return [name for name in saved.configurations if name not in self._adapters_of_model()]

    def _add_missing(self, parts: Sequence[Part]) -> None:
        """Add the adapters that the model lacks. Raises ValueError if that is not possible."""
        saved = self._saved(parts)
        for adapter in self._lacking(saved):
            if not self._layout.whole:
                raise ValueError(f"the adapter {adapter!r} cannot be added to a sharded model")
            add_frozen(self._model, adapter, saved.configurations[adapter])

    def _load_ranks(self, saved: SavedAdapters) -> None:
        """Restore what AdaLoRA has measured and decided on."""
        for adapter, allocator in allocators(self._model).items():
            config: Any = self._model.peft_config[adapter]  # type: ignore[index]
            ranks = saved.ranks.get(adapter)
            if ranks is not None and not _are_ranks(ranks):
                raise ValueError(f"the ranks of the adapter {adapter!r} are not lists of truth values")
            config.rank_pattern = ranks
            for kind in IMPORTANCES:
                prefix = f"{ALLOCATOR}.{adapter}.{kind}."
                held = {
                    name.removeprefix(prefix): part
                    for name, part in saved.importances.items()
                    if name.startswith(prefix)
                }
                own = dict(self._model.base_model.model.named_parameters())  # type: ignore[union-attr]
                if unknown := held.keys() - own.keys():
                    raise ValueError(f"the model has no parameter {min(unknown)!r}, which AdaLoRA has measured")
                setattr(
                    allocator,
                    kind,
                    {name: read_tensor(part).to(own[name].device).clone() for name, part in held.items()},
                )


def _are_ranks(value: Any) -> bool:
    """Return whether a value says, for each matrix of AdaLoRA, which of its ranks are left."""
    return isinstance(value, Mapping) and all(
        isinstance(each, list) and all(isinstance(kept, bool) for kept in each) for each in value.values()
    )
