"""Engines that spread one model over several devices."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments.checks import unknown_choice
from hexloop.app.arguments.choices import FSDPOption
from hexloop.app.arguments.conversion import mapping_or_file
from hexloop.app.arguments.declare import argument, argument_group
from hexloop.app.arguments.group import Arguments
from hexloop.domain.wording import RefusalError

NO_WORDS = {"true": "full_shard", "false": None, "": None}


def _fsdp_words(value: Any) -> Any:
    """True and a list are other spellings of words parted by blanks; False and an empty list are none."""
    if isinstance(value, bool):
        return "full_shard" if value else None
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    return NO_WORDS.get(value.strip().lower(), value) if isinstance(value, str) else value


def _known_fsdp_words(value: str) -> None:
    options = [option.value for option in FSDPOption]
    for word in value.split():
        if word not in options:
            raise unknown_choice(word, options)


def _parallelism_config(value: object) -> None:
    if type(value).__name__ != "ParallelismConfig":
        raise RefusalError("it takes a ParallelismConfig of the package accelerate", "give one, or leave it out")


@argument_group
class Sharding(Arguments):
    """Models spread over devices."""

    fsdp: str | None = argument(
        default=None,
        prepare=_fsdp_words,
        checks=(_known_fsdp_words,),
        bare="true",
        help="spread the model over the processes with torch's FSDP; true, or words of older releases such as "
        "'full_shard auto_wrap'",
    )
    fsdp_config: dict[str, Any] | str | None = argument(
        default=None, prepare=mapping_or_file, help="settings of FSDP: a mapping, or the path of a JSON file of one"
    )
    deepspeed: dict[str, Any] | str | None = argument(
        default=None,
        prepare=mapping_or_file,
        help="settings of DeepSpeed, which turn it on: a mapping, or the path of a JSON file of one",
    )
    parallelism_config: Any = argument(
        default=None,
        checks=(_parallelism_config,),
        help="accelerate's ParallelismConfig: how the model is spread over several dimensions of devices",
    )
