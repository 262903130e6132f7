"""The keys of `fsdp_config`, and from what may be written there to what it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hexloop.domain.wording import RefusalError, did_you_mean, enumeration, parse_truth, shown

STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
"""What is split over the processes; accelerate's configuration files number them, from 1."""

POLICIES = ("transformer_based_wrap", "size_based_wrap", "no_wrap")
PREFETCHES = ("backward_pre", "backward_post", "no_prefetch")
FORMATS = ("fp32", "bf16", "fp16")
FORMAT_NAMES = {"no": "fp32", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
STATE_DICTS = ("full_state_dict", "sharded_state_dict")

Reader = Callable[[Any], Any]


def truth(value: Any) -> bool:
    """A truth value, or a word for one."""
    found = parse_truth(str(value))
    if found is None:
        raise RefusalError("it takes a truth value", "write true or false")
    return found


def word_of(choices: tuple[str, ...], numbered: bool = False) -> Reader:
    """One of some words, in letters of any size; or its number, from 1."""

    def read(value: Any) -> str:
        word = str(getattr(value, "value", value)).strip().lower().rpartition(".")[2]
        if numbered and word.isdigit() and 1 <= int(word) <= len(choices):
            return choices[int(word) - 1]
        if word not in choices:
            raise RefusalError("there is no such choice", f"choose {enumeration(choices, 'or')}")
        return word

    return read


def count(value: Any) -> int:
    """A number of things."""
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdigit():
        raise RefusalError("it takes a number, 0 or more", "write a whole number")
    return int(text)


def names(value: Any) -> tuple[str, ...] | None:
    """Names as a list, or in one text with commas; none where nothing is given."""
    listed = value.split(",") if isinstance(value, str) else list(value or ())
    if not all(isinstance(each, str) for each in listed):
        raise RefusalError("it takes names of classes", "write a list of texts")
    return tuple(each.strip() for each in listed if each.strip()) or None


def version(value: Any) -> int:
    """1 or 2."""
    if str(value) not in ("1", "2"):
        raise RefusalError("torch's FSDP has two generations", "write 1 or 2")
    return int(value)


def reshard(value: Any) -> bool | str:
    """A truth value, or for the first generation a strategy."""
    try:
        return truth(value)
    except RefusalError:
        return str(word_of(STRATEGIES, numbered=True)(value))


def mesh(value: Any) -> tuple[int, int]:
    """How many copies there are, and over how many processes each is spread."""
    if not (isinstance(value, list | tuple) and len(value) == 2 and all(type(n) is int and n > 0 for n in value)):
        raise RefusalError("it takes two numbers", "write [copies of the model, processes that share one]")
    return value[0], value[1]


def formats(value: Any) -> dict[str, str]:
    """A format for everything, or a mapping from what is computed to its format."""
    if not isinstance(value, Mapping):
        named = _format(value)
        return {} if named == "fp32" else {"param_dtype": named, "reduce_dtype": "fp32"}
    known = ("param_dtype", "reduce_dtype", "buffer_dtype", "output_dtype")
    if unknown := value.keys() - set(known):
        raise RefusalError(f"it has no key {enumeration(sorted(map(repr, unknown)))}", f"choose among {known}")
    return {key: _format(named) for key, named in value.items() if named is not None}


def _format(value: Any) -> str:
    name = str(value).removeprefix("torch.").lower()
    return str(word_of(FORMATS)(FORMAT_NAMES.get(name, name)))


def _only(unset: tuple[Any, ...], because: str, remedy: str) -> Reader:
    """What is known, and refused unless it asks for nothing."""

    def read(value: Any) -> None:
        if not (value in unset or str(value).strip().lower() in ("", "false", "none", "0")):
            raise RefusalError(because, remedy)

    return read


_XLA = _only((None, False, {}), "hexloop has no adapter for XLA yet", "leave it out")

READERS: dict[str, Reader] = {
    "version": version,
    "sharding_strategy": word_of(STRATEGIES, numbered=True),
    "reshard_after_forward": reshard,
    "cpu_offload": truth,
    "auto_wrap_policy": word_of(POLICIES, numbered=True),
    "transformer_layer_cls_to_wrap": names,
    "min_num_params": count,
    "backward_prefetch": word_of(PREFETCHES, numbered=True),
    "forward_prefetch": truth,
    "limit_all_gathers": truth,
    "use_orig_params": truth,
    "sync_module_states": truth,
    "cpu_ram_efficient_loading": truth,
    "activation_checkpointing": truth,
    "state_dict_type": word_of(STATE_DICTS),
    "mixed_precision": formats,
    "device_mesh": mesh,
    "activation_checkpointing_offload": _only(
        (None, False), "hexloop keeps no activations in host memory", "set activation_checkpointing"
    ),
    "ignored_modules": _only((None, ()), "hexloop shards every module", "leave it out"),
    "xla": _XLA,
    "xla_fsdp_v2": _XLA,
    "xla_fsdp_settings": _XLA,
    "xla_fsdp_grad_ckpt": _XLA,
}
"""By key. Those of XLA wait for their engine."""

SPELLINGS = {
    "offload_params": "cpu_offload",
    "transformer_cls_to_wrap": "transformer_layer_cls_to_wrap",
    "transformer_cls_names_to_wrap": "transformer_layer_cls_to_wrap",
    "backward_prefetch_policy": "backward_prefetch",
    "mixed_precision_policy": "mixed_precision",
}
"""Other names that accelerate has for some."""


def read_keys(given: Mapping[str, Any], called: Callable[[str], str], problems: list[str]) -> dict[str, Any]:
    """What each key says; adds to `problems` what is wrong. called: how a message names a key."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        key = name if name in READERS else name.removeprefix("fsdp_")
        key = SPELLINGS.get(key, key)
        if key not in READERS:
            remedy = did_you_mean(key, READERS, f"choose among {', '.join(READERS)}.")
            problems.append(f"You set {called(name)}={shown(value)}, but FSDP has no such setting; {remedy}")
            continue
        if value is None:
            continue
        try:
            read = READERS[key](value)
        except RefusalError as refusal:
            problems.append(f"You set {called(name)}={shown(value)}, but {refusal}.")
            continue
        if key in found and found[key] != read:
            problems.append(f"You set {called(name)}={shown(value)}, but its other spelling says otherwise; keep one.")
        found[key] = read
    return found
