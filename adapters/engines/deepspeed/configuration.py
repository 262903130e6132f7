"""DeepSpeed's configuration: read, completed from the training arguments, and checked against them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from attrs import frozen

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.adapters.engines.deepspeed.launcher import launched_configuration, launched_value
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import shown
from hexloop.ports.learner import HALF_FORMATS

AUTO = "auto"
"""The value that leaves an entry to the arguments."""

STAGES = (0, 1, 2, 3)
OFFLOADS = ("none", "cpu", "nvme")

FROM_LAUNCHER = (
    "zero_optimization.stage",
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_param.device",
    "zero_optimization.offload_param.nvme_path",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
)
"""Entries whose "auto" stands for the value in the variables of accelerate's launcher."""

OTHER_DIMENSIONS = ("tensor_parallel.autotp_size", "sequence_parallel_size", "expert_parallel.autoep_size")
QUANTIZED = "zero_optimization.zero_quantized_nontrainable_weights"
REDUCTION = "gradient_allreduce_op"
"""The entry that says whether gradients are summed or averaged, in the DeepSpeed versions that can do both."""


@frozen
class RunLength:
    """The length of a run and of its warm-up, in optimizer steps."""

    total: int
    warmup: int


@frozen
class DeepSpeedConfiguration:
    """A configuration that the arguments have completed.

    values: what `deepspeed.initialize` takes, except for what depends on the model.
    problems: a sentence for everything in it that cannot work, or that the arguments contradict.
    """

    values: dict[str, Any]
    problems: Sequence[str] = ()

    @property
    def stage(self) -> int:
        """What ZeRO partitions: 0 nothing, 1 the optimizer state, 2 also gradients, 3 also weights."""
        return int(entry(self.values, "zero_optimization.stage", 0))

    @property
    def half(self) -> str | None:
        """The half format that the engine computes in: fp16, bf16 or None."""
        return next((name for name in HALF_FORMATS if entry(self.values, f"{name}.enabled", False) is True), None)

    @property
    def consolidates(self) -> bool:
        """Whether rank 0 is to write the whole weights."""
        return entry(self.values, "zero_optimization.stage3_gather_16bit_weights_on_model_save", False) is True

    @property
    def scheduler(self) -> dict[str, Any] | None:
        """The section of one of DeepSpeed's own schedules."""
        return self.values.get("scheduler")

    def for_length(self, length: RunLength) -> tuple[dict[str, Any], list[str]]:
        """Return the scheduler's section for a run of this length, and the problems with it."""
        values = deepcopy({"scheduler": self.scheduler or {}})
        problems = list(fill(values, FROM_LENGTH, length))
        return values["scheduler"], problems

    def before_model(self) -> dict[str, Any]:
        """Return the values that are known before there is a model."""
        values = deepcopy(self.values)
        values.pop("scheduler", None)
        for path in autos_in(values):
            remove(values, path)
        return values

    def for_model(self, model: Any) -> tuple[dict[str, Any], list[str]]:
        """Return the values for an engine of this model, and the problems with them."""
        values = deepcopy(self.values)
        values.pop("scheduler", None)
        if self.stage < 3:
            for rule in FROM_HIDDEN_SIZE[1:]:
                remove(values, rule.path)
        wanted = [path for path in autos_in(values) if path in {rule.path for rule in FROM_HIDDEN_SIZE}]
        size = hidden_size(model)
        if size is None and wanted:
            return values, [
                f"You chose {' and '.join(wanted)}='auto' in DeepSpeed's configuration, but {type(model).__name__} "
                "has no config with a hidden_size; write numbers there."
            ]
        problems = list(fill(values, FROM_HIDDEN_SIZE, size)) if wanted else []
        if self.stage == 0 and self.half is None:
            values["gradient_clipping"] = 0.0  # the learner clips then, as the engine would not report the norm
        return values, problems


def deepspeed_configuration(args: EngineArguments) -> DeepSpeedConfiguration | None:
    """Return the configuration in the arguments, or else in the launcher's environment; None if there is neither."""
    try:
        given = deepcopy(args.deepspeed) if args.deepspeed else launched_configuration()
    except ConfigurationError as error:
        return DeepSpeedConfiguration({}, error.problems)
    if given is None:
        return None
    if not isinstance(given, dict):
        return DeepSpeedConfiguration({}, [f"You chose deepspeed={shown(given)}, which is not a mapping; give one."])
    problems = list(_complete(given, args))
    problems += _refused(given)
    return DeepSpeedConfiguration(given, problems)


def hidden_size(model: Any) -> int | None:
    """Return the hidden size in a model's config, the largest if there are several."""
    config: Any = getattr(model, "config", None)
    for each in (config, getattr(config, "text_config", None)):
        if isinstance(found := getattr(each, "hidden_size", None), int):
            return found
        if sizes := getattr(each, "hidden_sizes", None):
            return int(max(sizes))
    return None


def with_gradient_sum(config: Mapping[str, Any], model: Any) -> dict[str, Any] | None:
    """Return `config` for an engine that sums gradients over the ranks, None if it can only average them.

    A sum saves multiplying each rank's share by the number of ranks. ZeRO 3, ZenFlow and DeepCompile only average. In
    narrow formats an averaged gradient may become 0, and the user's own choices about the scale stay. Gradients of
    experts, whose parameters DeepSpeed marks with `allreduce = False`, are reduced over some of the ranks only. Under
    ZeRO 1 and 2 gradients are also reduced in place: by default DeepSpeed copies them to a buffer, reduces all of it,
    and copies each rank's part back.
    """
    zero = _mapping(config, "zero_optimization")
    stage = zero.get("stage", 0)
    if (
        stage == 3
        or "zenflow" in zero
        or any(name in config for name in (REDUCTION, "prescale_gradients", "gradient_predivide_factor"))
        or any(_mapping(config, name).get("enabled", False) for name in ("fp16", "amp", "torch_autocast"))
        or _mapping(config, "compile").get("deepcompile", False)
        or any(not getattr(parameter, "allreduce", True) for parameter in model.parameters())
    ):
        return None
    summing = {**config, REDUCTION: "sum"}
    if stage > 0 and not any(name in zero for name in ("reduce_scatter", "use_multi_rank_bucket_allreduce")):
        summing["zero_optimization"] = {**zero, "reduce_scatter": False}
    return summing


def with_gradients_in_place(config: Mapping[str, Any], device_type: str) -> dict[str, Any]:
    """Return `config` for an engine that reduces the gradients of ZeRO 3 where the backward pass left them.

    By default DeepSpeed first copies each into a buffer. That avoids fragmentation of a GPU's memory, which is not a
    problem on the CPU.
    """
    zero = _mapping(config, "zero_optimization")
    chosen = any(name in zero for name in ("contiguous_gradients", "reduce_scatter", "zenflow"))
    if zero.get("stage", 0) != 3 or device_type != "cpu" or chosen:
        return dict(config)
    return {**config, "zero_optimization": {**zero, "contiguous_gradients": False}}


def _mapping(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def section_of(config: dict[str, Any], path: str) -> tuple[dict[str, Any] | None, str]:
    """Return the mapping that an entry such as "zero_optimization.stage" is in, None if absent, and its last name."""
    *sections, name = path.split(".")
    found: Any = config
    for section in sections:
        found = found.get(section) if isinstance(found, dict) else None
    return (found if isinstance(found, dict) else None), name


def entry(config: dict[str, Any], path: str, unset: Any = None) -> Any:
    """Return the value of an entry; `unset` if it is absent, None or "auto"."""
    section, name = section_of(config, path)
    found = None if section is None else section.get(name)
    return unset if found is None or found == AUTO else found


def autos_in(config: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the paths of all entries that are "auto"."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from autos_in(value, f"{before}{name}.")
        elif value == AUTO:
            yield f"{before}{name}"


def remove(config: dict[str, Any], path: str) -> None:
    """Remove an entry, so that DeepSpeed's default applies."""
    section, name = section_of(config, path)
    if section is not None:
        section.pop(name, None)


@frozen
class Rule:
    """An entry that follows from the arguments, the model or the length of the run.

    source: what it follows from, as messages name it. value: computes it. completes: it is also set if its section is
    there without it. binds: another value is a contradiction.
    """

    path: str
    source: str
    value: Callable[[Any], Any]
    completes: bool = False
    binds: bool = True


FROM_ARGUMENTS = (
    Rule("train_micro_batch_size_per_gpu", "per_device_train_batch_size", lambda args: args.train_batch_size, True),
    Rule(
        "gradient_accumulation_steps",
        "gradient_accumulation_steps",
        lambda args: args.gradient_accumulation_steps,
        True,
    ),
    Rule(
        "train_batch_size",
        "the number of processes times per_device_train_batch_size times gradient_accumulation_steps",
        lambda args: args.world_size * args.train_batch_size * args.gradient_accumulation_steps,
        True,
    ),
    Rule("gradient_clipping", "max_grad_norm", lambda args: args.max_grad_norm, True),
    Rule("optimizer.params.lr", "learning_rate", lambda args: args.learning_rate, True),
    Rule("optimizer.params.betas", "adam_beta1 and adam_beta2", lambda args: [args.adam_beta1, args.adam_beta2]),
    Rule("optimizer.params.eps", "adam_epsilon", lambda args: args.adam_epsilon),
    Rule("optimizer.params.weight_decay", "weight_decay", lambda args: args.weight_decay),
    Rule("scheduler.params.warmup_min_lr", "nothing", lambda args: 0, binds=False),
    Rule("scheduler.params.warmup_max_lr", "learning_rate", lambda args: args.learning_rate),
    Rule("fp16.enabled", "fp16", lambda args: args.mixed_precision == "fp16" or args.fp16_full_eval, True),
    Rule("bf16.enabled", "bf16", lambda args: args.mixed_precision == "bf16" or args.bf16_full_eval, True),
    Rule("amp.enabled", "nothing", lambda args: False, binds=False),
    Rule("amp.opt_level", "nothing", lambda args: "O1", binds=False),
)
"""Entries that follow from the training arguments."""

FROM_HIDDEN_SIZE = (
    Rule("zero_optimization.reduce_bucket_size", "the model", lambda size: size * size, binds=False),
    Rule(
        "zero_optimization.stage3_prefetch_bucket_size", "the model", lambda size: int(0.9 * size * size), binds=False
    ),
    Rule("zero_optimization.stage3_param_persistence_threshold", "the model", lambda size: 10 * size, binds=False),
)
"""Entries that follow from the model's hidden size; all but the first are of stage 3 only."""

FROM_LENGTH = (
    Rule("scheduler.params.total_num_steps", "the number of optimizer steps", lambda length: length.total),
    Rule("scheduler.params.warmup_num_steps", "warmup_steps", lambda length: max(1, length.warmup)),
)
"""Entries that follow from the `RunLength`; DeepSpeed's schedules need at least one warm-up step."""


def fill(config: dict[str, Any], rules: tuple[Rule, ...], known: Any) -> Iterator[str]:
    """Set the entries of `rules` to what follows from `known`; yield a sentence for each that contradicts it."""
    for rule in rules:
        section, name = section_of(config, rule.path)
        if section is None:
            continue
        present, value = section.get(name), rule.value(known)
        if present == AUTO or (present is None and rule.completes):
            section[name] = value
        elif rule.binds and present is not None and present != value:
            yield (
                f"You chose {rule.path}={shown(present)} in DeepSpeed's configuration, but {rule.source} is "
                f"{shown(value)}; set the former to 'auto', or both to the same."
            )


def _complete(config: dict[str, Any], args: EngineArguments) -> Iterator[str]:
    """Set what follows from the arguments; yield a sentence for each contradiction."""
    for path in FROM_LAUNCHER:
        section, name = section_of(config, path)
        if section is not None and section.get(name) == AUTO:
            section[name] = launched_value(path)
    _replace_apex(config)
    for name in HALF_FORMATS:
        if args.mixed_precision == name and name not in config:
            config[name] = {"enabled": True, **({"auto_cast": True} if name == "fp16" else {})}
    if isinstance(config.get("optimizer"), dict):
        config["optimizer"].setdefault("params", {})
    yield from fill(config, FROM_ARGUMENTS, args)
    if "steps_per_print" not in config:  # hexloop's loggers report progress, without waiting for the device
        config["steps_per_print"] = math.inf
        config.setdefault("timers", {"throughput": {"enabled": False}})
    if "optimizer" not in config:
        config.setdefault("zero_allow_untested_optimizer", True)
        config.setdefault("zero_force_ds_cpu_optimizer", False)
    known = {rule.path for rule in (*FROM_HIDDEN_SIZE, *FROM_LENGTH)}
    for path in autos_in(config):
        if path not in known:
            yield (
                f"You chose {path}='auto' in DeepSpeed's configuration, but no argument corresponds to it; "
                "give a value, or leave it out."
            )


def _replace_apex(config: dict[str, Any]) -> None:
    """Let the section of Apex, if it is on, mean DeepSpeed's own fp16, or fp32 at its level O0; warn of it."""
    if entry(config, "amp.enabled", False) is not True:
        return
    is_full = str(config.pop("amp").get("opt_level", "O1")).endswith("0")
    own = "fp32" if is_full else "DeepSpeed's own fp16"
    warnings.warn(
        f"amp in DeepSpeed's configuration is for Apex, which is no longer maintained; the run computes in {own}. "
        "Write fp16 or bf16 instead.",
        FutureWarning,
        stacklevel=2,
    )
    if not is_full:
        config.setdefault("fp16", {"enabled": True, "auto_cast": True})


def _refused(config: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for everything that DeepSpeed cannot do, or hexloop cannot do with it."""
    stage = entry(config, "zero_optimization.stage", 0)
    if stage not in STAGES:
        yield _sentence("zero_optimization.stage", stage, "the stages of ZeRO are 0, 1, 2 and 3", "choose one of them")
        return
    yield from _refused_offloads(config, stage)
    if all(entry(config, f"{name}.enabled", False) is True for name in HALF_FORMATS):
        yield "You chose fp16 and bf16 in DeepSpeed's configuration, but an engine computes in one; disable the other."
    if entry(config, QUANTIZED, False) is True:
        yield _sentence(QUANTIZED, True, "a checkpoint keeps every weight in its own format", "leave it out")
    reduction = entry(config, REDUCTION, "mean")
    if str(reduction).lower() not in ("mean", "sum"):
        yield _sentence(REDUCTION, reduction, "it takes mean or sum", "choose one of them")
    elif stage == 3 and str(reduction).lower() == "sum":
        yield _sentence(REDUCTION, reduction, "ZeRO 3 only takes means", "leave it out, or choose a lower stage")
    for path in OTHER_DIMENSIONS:
        size = entry(config, path, 1)
        if size not in (0, 1):
            yield _sentence(path, size, "hexloop only supports data parallelism so far", "set it to 1")


def _refused_offloads(config: dict[str, Any], stage: int) -> Iterator[str]:
    least = {"optimizer": {"cpu": 1, "nvme": 3}, "param": {"cpu": 3, "nvme": 3}}
    for part, stages in least.items():
        path = f"zero_optimization.offload_{part}"
        device = entry(config, f"{path}.device", "none")
        if device not in OFFLOADS:
            yield _sentence(f"{path}.device", device, "it takes none, cpu or nvme", "choose one of them")
        elif stage < stages.get(device, 0):
            yield _sentence(f"{path}.device", device, f"ZeRO does so from stage {stages[device]} on", "raise the stage")
        elif device == "nvme" and not entry(config, f"{path}.nvme_path"):
            yield _sentence(f"{path}.device", device, f"{path}.nvme_path names no folder", "set it")


def _sentence(path: str, value: object, because: str, remedy: str) -> str:
    return f"You chose {path}={shown(value)} in DeepSpeed's configuration, but {because}; {remedy}."
