"""Names of transformers' TrainingArguments that libraries rely on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers

from hexloop import HfArgumentParser, TrainingArguments
from hexloop.app.arguments.base import INSTEAD
from hexloop.domain.errors import ConfigurationError


@dataclass
class FineTuningConfig(TrainingArguments):
    """A class of arguments as libraries derive it."""

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]

    learning_rate: float = field(default=2e-5, metadata={"help": "The learning rate."})
    model_init_kwargs: dict[str, Any] | str | None = field(default=None, metadata={"help": "Of the model."})
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.checked = True


def test_every_name_exists_or_names_the_public_way(tmp_path: Path) -> None:
    """Fields, methods and attributes of a constructed object."""
    theirs: Any = transformers.TrainingArguments(str(tmp_path), use_cpu=True)
    ours = TrainingArguments(str(tmp_path), use_cpu=True)
    names = {name for name in (*dir(type(theirs)), *vars(theirs)) if not name.startswith("__")}

    missing = {name for name in names if not hasattr(ours, name)}
    assert missing <= INSTEAD.keys()
    for name in missing:
        with pytest.raises(AttributeError, match=f"no attribute {name!r}: read"):
            getattr(ours, name)


def test_a_field_of_a_subclass_may_be_json_text(tmp_path: Path) -> None:
    """Strings that spell truth values and numbers are converted, as transformers does."""
    text = '{"attn": "eager", "cache": "false", "layers": "2", "scale": "0.5", "more": {"on": "True"}}'
    parsed: Any = HfArgumentParser(FineTuningConfig).parse_args_into_dataclasses(
        ["--output_dir", str(tmp_path), "--model_init_kwargs", text]
    )[0]

    assert parsed.model_init_kwargs == {
        "attn": "eager", "cache": False, "layers": 2, "scale": 0.5, "more": {"on": True}
    }  # fmt: skip
    assert parsed.learning_rate == 2e-5
    with pytest.raises(ConfigurationError, match=r"model_init_kwargs='{x' is not valid JSON"):
        FineTuningConfig(str(tmp_path), model_init_kwargs="{x")


def test_dtypes_are_written_by_name(tmp_path: Path) -> None:
    """In any field, and in nested dictionaries by `_dict_dtype_to_str`."""
    nested = {"a": torch.float16, "b": {"c": torch.bfloat16, "d": 1}}
    TrainingArguments._dict_dtype_to_str(nested)

    assert FineTuningConfig(str(tmp_path), dtype=torch.bfloat16).to_dict()["dtype"] == "bfloat16"
    assert nested == {"a": "float16", "b": {"c": "bfloat16", "d": 1}}


def test_an_overridden_check_is_called(tmp_path: Path) -> None:
    """`_validate_args` runs once the values are checked."""

    class Strict(TrainingArguments):
        def _validate_args(self) -> None:
            if self.max_steps < 0:
                raise ValueError("max_steps is needed")

    assert Strict(str(tmp_path), max_steps=3).max_steps == 3
    with pytest.raises(ValueError, match="max_steps is needed"):
        Strict(str(tmp_path))


def test_an_accelerator_config_is_an_object(tmp_path: Path) -> None:
    """The class itself is refused as transformers refuses it; accelerate's configured state may be used."""
    kind: Any = type(TrainingArguments(str(tmp_path)).accelerator_config)
    with pytest.raises(NotImplementedError, match=r"make one: AcceleratorConfig\(\)"):
        TrainingArguments(str(tmp_path), accelerator_config=kind)

    made: Any = TrainingArguments(str(tmp_path), accelerator_config={"use_configured_state": True})
    config: Any = made.accelerator_config
    assert config.use_configured_state
    made.check()
    assert config.use_configured_state
    theirs: Any = transformers.TrainingArguments(str(tmp_path), use_cpu=True)
    assert made.to_dict()["accelerator_config"] == theirs.to_dict()["accelerator_config"]
