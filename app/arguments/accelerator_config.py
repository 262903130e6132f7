"""`AcceleratorConfig`: settings that the reference library hands on to the package accelerate."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any, Self

from hexloop.app.arguments.batches import Batches
from hexloop.app.arguments.conversion import converter, mapping_or_file
from hexloop.app.arguments.declare import argument, argument_group, rule
from hexloop.domain.wording import RefusalError, did_you_mean


@dataclasses.dataclass
class AcceleratorConfig:
    """How batches are shared among processes, by the names and with the defaults of the reference library.

    One process alone has no batches to share: of these it goes by gradient_accumulation_kwargs.

    split_batches: a batch is divided among the processes, instead of being one process's; its size is a multiple of
        their number.
    dispatch_batches: the first process reads what can only be read from the start, and loaders of others' making, and
        hands out the batches. Where samples have numbers each process reads its own in any case.
    even_batches: in the reference library samples are repeated where the data do not come out even over the processes;
        here none ever is.
    use_seedable_sampler: the order of samples is a function of the seed and the epoch; hexloop's always is.
    non_blocking: batches are copied to the device without waiting; from page-locked memory they always are.
    gradient_accumulation_kwargs: `num_steps` stands for gradient_accumulation_steps where that is 1; with
        `sync_each_batch` processes exchange gradients at every micro-batch. It has no other keys that do anything.
    use_configured_state: take up accelerate's state that the script has set up, which hexloop does not use.
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
        """Read a JSON file. Raises `RefusalError`, a ValueError, for a key that is none of these."""
        return cls(**_checked(json.loads(Path(json_file).read_text(encoding="utf-8"))))

    def to_dict(self) -> dict[str, Any]:
        """The settings by name, separate from this object."""
        return copy.deepcopy(vars(self))

    def pop(self, key: str, default: Any = None) -> Any:
        """Take a setting away and give its value; `default` where there is none."""
        return vars(self).pop(key, default)


_FIELDS = {field.name: field for field in dataclasses.fields(AcceleratorConfig)}
_KINDS: dict[str, Any] = {
    "dispatch_batches": bool | None,
    "gradient_accumulation_kwargs": dict[str, Any] | None,
}


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """The settings, each of its type."""
    checked = {}
    for name, value in values.items():
        if name not in _FIELDS:
            remedy = did_you_mean(name, _FIELDS, f"choose among {', '.join(_FIELDS)}")
            raise RefusalError(f"it has no key {name!r}", remedy)
        try:
            checked[name] = converter.structure(value, _KINDS.get(name, bool))
        except RefusalError as refusal:
            raise RefusalError(f"at its key {name}, {refusal.because}", refusal.remedy) from None
    return checked


def _config(value: Any) -> Any:
    """An AcceleratorConfig out of None, a mapping, its JSON text or file, or the reference library's own class."""
    if isinstance(value, type):
        raise RefusalError("it takes an object, not a class", f"make one: {value.__name__}()")
    if value is None:
        value = {}
    if isinstance(value, AcceleratorConfig) or (
        type(value).__name__ == AcceleratorConfig.__name__ and hasattr(value, "to_dict")
    ):
        value = value.to_dict()
    made = AcceleratorConfig(**_checked(converter.structure(mapping_or_file(value), dict[str, Any])))
    if made.pop("use_configured_state"):  # the reference library takes it away as well, once it was heeded
        raise RefusalError(
            "hexloop makes no use of a state that accelerate was given", "leave its key use_configured_state out"
        )
    return made


converter.register_structure_hook(AcceleratorConfig, lambda value, _: _config(value))


@argument_group
class AcceleratorSettings(Batches):
    """Settings for the package accelerate."""

    accelerator_config: AcceleratorConfig | str | dict[str, Any] | None = argument(
        default=None,
        prepare=_config,
        help="how batches are shared among processes: a mapping, an AcceleratorConfig, or the path of a JSON file",
    )

    def _settle(self) -> None:
        super()._settle()
        steps = self._steps_told_accelerate
        if steps is not None and self.gradient_accumulation_steps == 1:
            self.gradient_accumulation_steps = steps

    @property
    def _steps_told_accelerate(self) -> int | None:
        config = self.accelerator_config
        given = config.gradient_accumulation_kwargs if isinstance(config, AcceleratorConfig) else None
        return (given or {}).get("num_steps")

    @rule("accelerator_config", "gradient_accumulation_steps")
    def _one_number_of_micro_batches(self) -> None:
        if self._steps_told_accelerate not in (None, self.gradient_accumulation_steps):
            raise RefusalError(
                "these are two numbers for one thing", "leave num_steps out of gradient_accumulation_kwargs"
            )
