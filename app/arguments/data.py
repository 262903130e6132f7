"""Arguments about data: batch sizes, the length of the run, loading, and sharing batches among processes."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any, Self

from hexloop.app.arguments.choices import SamplingText, WorkerStartText
from hexloop.app.arguments.conversion import at_least, converter, mapping_or_file, one_of, unset_or_positive
from hexloop.app.arguments.declaration import (
    ArgumentGroup,
    ArgumentRule,
    annotations_of,
    argument,
    argument_group,
    rule,
)
from hexloop.domain.regular_files import read_file
from hexloop.domain.wording import RefusalError, did_you_mean


@argument_group
class BatchArguments(ArgumentGroup):
    """Batches and length of the run."""

    per_device_train_batch_size: int = argument(
        default=8, check=at_least(1), help="samples per training micro-batch on each device"
    )
    per_device_eval_batch_size: int = argument(
        default=8, check=at_least(1), help="samples per batch on each device in evaluation and prediction"
    )
    gradient_accumulation_steps: int = argument(
        default=1, check=at_least(1), help="micro-batches whose gradients are summed before each optimizer step"
    )
    num_train_epochs: float = argument(
        default=3.0, check=at_least(0), help="number of training epochs; the last may be a fraction of one"
    )
    max_steps: int = argument(
        default=-1,
        check=unset_or_positive,
        help="number of optimizer steps, needed for data of unknown length; -1 to use num_train_epochs",
    )
    auto_find_batch_size: bool = argument(
        default=False, help="restart with a smaller batch size if a training batch does not fit into memory"
    )
    average_tokens_across_devices: bool = argument(
        default=True, help="divide the loss by the number of tokens in all processes together; no effect in one process"
    )

    @rule("num_train_epochs", "max_steps")
    def _some_training_steps(self) -> None:
        if self.num_train_epochs == 0 and self.max_steps == -1:
            raise RefusalError("that yields zero training steps", "give one of them a positive value")


@dataclasses.dataclass
class AcceleratorConfig:
    """How batches are shared among processes, with the names and defaults of transformers.

    A single process uses only gradient_accumulation_kwargs.

    Args:
        split_batches: whether a batch is divided among the processes, instead of belonging to one; its size is then a
            multiple of their number.
        dispatch_batches: whether the first process reads the data and sends the batches to the others, if the data can
            only be read from the start, or comes from a custom loader. Otherwise each process reads its own samples by
            index.
        even_batches: in transformers, repeats samples if the data cannot be divided evenly among the processes; hexloop
            never repeats samples.
        use_seedable_sampler: makes the order of samples a function of the seed and the epoch, as it always is in
            hexloop.
        non_blocking: copies batches to the device asynchronously, as hexloop always does from pinned memory.
        gradient_accumulation_kwargs: `num_steps` sets gradient_accumulation_steps if that is 1; with `sync_each_batch`
            processes exchange gradients at every micro-batch. Other keys have no effect.
        use_configured_state: uses the state of accelerate that the script has set up; the Trainer raises an error if
            there is none, or if it differs from the run.
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = True
    non_blocking: bool = False
    gradient_accumulation_kwargs: dict[str, Any] | None = None
    use_configured_state: bool = False

    @classmethod
    def from_json_file(cls, json_file: str | Path) -> Self:
        """Read a JSON file.

        Args:
            json_file: the path of the file.

        Raises:
            RefusalError: a ValueError, for an unknown key.
        """
        return cls(**_converted_settings(json.loads(read_file(json_file, "recipe_bytes").decode("utf-8"))))

    def assign(self, name: str, value: Any) -> None:
        """Set a setting for loaders that are made from now on. `to_dict` still returns the one that was given.

        Args:
            name: the name of the setting.
            value: its new value.
        """
        vars(self).setdefault(_GIVEN, {}).setdefault(name, getattr(self, name))
        setattr(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """Return a deep copy of the settings by name, as they were given.

        Those of arguments do not include `use_configured_state`, as in transformers.
        """
        settings = dict(vars(self))
        given, is_used = settings.pop(_GIVEN, {}), settings.pop(_IS_USED, False)
        if is_used:
            settings.pop("use_configured_state", None)
        return copy.deepcopy({**settings, **given})

    def pop(self, key: str, default: Any = None) -> Any:
        """Remove a setting and return its value, or `default` if it does not exist.

        Args:
            key: the name of the setting.
            default: what is returned if it does not exist.
        """
        return vars(self).pop(key, default)


_GIVEN = "_given"
"""The attribute with the given values of settings that were assigned since."""

_IS_USED = "_is_used"
"""The attribute that says whether the settings are those of arguments."""

_SETTINGS = annotations_of(AcceleratorConfig)


def _converted_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an AcceleratorConfig, each converted to its type."""
    converted = {}
    for name, value in values.items():
        if name not in _SETTINGS:
            remedy = did_you_mean(name, _SETTINGS, f"choose among {', '.join(_SETTINGS)}")
            raise RefusalError(f"it has no key {name!r}", remedy, TypeError)
        try:
            converted[name] = converter.structure(value, _SETTINGS[name])
        except RefusalError as refusal:
            raise RefusalError(f"at its key {name}, {refusal.because}", refusal.remedy) from None
    return converted


def _to_accelerator_config(value: Any) -> Any:
    """Convert None, a mapping, its JSON text or file, or transformers' class of the same name."""
    if isinstance(value, type):
        raise NotImplementedError(f"accelerator_config takes an object, not a class; make one: {value.__name__}().")
    if value is None:
        value = {}
    assigned = {name: getattr(value, name) for name in getattr(value, _GIVEN, ())}
    if isinstance(value, AcceleratorConfig):
        uses_state = getattr(value, "use_configured_state", False)
        value = {**value.to_dict(), **({"use_configured_state": True} if uses_state else {})}
    elif type(value).__name__ == AcceleratorConfig.__name__ and hasattr(value, "to_dict"):
        value = value.to_dict()
    made = AcceleratorConfig(**_converted_settings(converter.structure(mapping_or_file(value), dict[str, Any])))
    if not made.use_configured_state:
        made.pop("use_configured_state")  # transformers removes it as well
    vars(made)[_IS_USED] = True
    for name, setting in assigned.items():
        made.assign(name, setting)
    return made


converter.register_structure_hook(AcceleratorConfig, lambda value, _: _to_accelerator_config(value))


@argument_group
class AcceleratorArguments(BatchArguments):
    """Settings for the package accelerate."""

    accelerator_config: AcceleratorConfig | str | dict[str, Any] | None = argument(
        default=None,
        prepare=_to_accelerator_config,
        help="how batches are shared among processes: a mapping, an AcceleratorConfig, or the path of a JSON file",
    )

    def _derive(self) -> None:
        super()._derive()
        steps = self._accelerate_num_steps
        if steps is not None and self.gradient_accumulation_steps == 1:
            self.gradient_accumulation_steps = steps

    @property
    def _accelerate_num_steps(self) -> int | None:
        config = self.accelerator_config
        given = config.gradient_accumulation_kwargs if isinstance(config, AcceleratorConfig) else None
        return (given or {}).get("num_steps")

    @rule("accelerator_config", "gradient_accumulation_steps")
    def _one_number_of_micro_batches(self) -> None:
        if self._accelerate_num_steps not in (None, self.gradient_accumulation_steps):
            raise RefusalError(
                "they set different numbers of micro-batches", "leave num_steps out of gradient_accumulation_kwargs"
            )


def _needs_workers(name: str, because: str) -> ArgumentRule:
    @rule(name, "dataloader_num_workers")
    def check(arguments: DataArguments) -> None:
        if getattr(arguments, name) and arguments.dataloader_num_workers == 0:
            raise RefusalError(because, "give dataloader_num_workers a positive value, or leave the other out")

    return check


@argument_group
class DataArguments(ArgumentGroup):
    """Data."""

    train_sampling_strategy: SamplingText = argument(
        default="random",
        check=one_of("random", "sequential", "group_by_length", "batch_rebalance"),
        help="order of training samples: random, sequential, group_by_length (random, by similar length), or "
        "batch_rebalance (random, each step in micro-batches of nearly equal cost, which differ in size)",
    )
    length_column_name: str = argument(
        default="length", help="dataset column with the lengths of the samples, for group_by_length and batch_rebalance"
    )
    remove_unused_columns: bool = argument(
        default=True, help="remove dataset columns that the model's forward method does not take"
    )
    label_names: list[str] | None = argument(
        default=None, help="model inputs that are labels; if unset, determined from the model's signature"
    )
    dataloader_num_workers: int = argument(
        default=0, check=at_least(0), help="processes that load batches; 0 loads them in the training process"
    )
    dataloader_prefetch_factor: int | None = argument(
        default=None, check=at_least(1), help="batches that each worker loads ahead; 2 if unset"
    )
    dataloader_persistent_workers: bool = argument(default=False, help="keep the workers alive between epochs")
    dataloader_multiprocessing_context: WorkerStartText | None = argument(
        default=None,
        check=one_of("fork", "spawn", "forkserver"),
        help="how workers are started: fork, spawn or forkserver; torch's default if unset",
    )
    dataloader_in_order: bool = argument(
        default=True, help="return batches in order, even if a later one is ready earlier"
    )
    dataloader_pin_memory: bool = argument(
        default=True, help="copy batches into pinned memory, which makes copies to a GPU faster"
    )
    dataloader_drop_last: bool = argument(default=False, help="drop the last batch if it is incomplete")

    _prefetch_needs_workers = _needs_workers("dataloader_prefetch_factor", "only workers load batches ahead")
    _persistence_needs_workers = _needs_workers("dataloader_persistent_workers", "there are no workers to keep alive")
    _context_needs_workers = _needs_workers("dataloader_multiprocessing_context", "there are no workers to start")
