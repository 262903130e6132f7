"""DeepSpeed's configuration, as the arguments complete it."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from attrs import frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.app.deepspeed.entries import AUTO, autos_in, entry, remove, section_of
from hexloop.app.deepspeed.launcher import launched_configuration, launched_value
from hexloop.app.deepspeed.rules import OF_ARGUMENTS, OF_HIDDEN_SIZE, OF_LENGTH, Length, fill
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import shown

STAGES = (0, 1, 2, 3)
OFFLOADS = ("none", "cpu", "nvme")
HALVES = ("fp16", "bf16")

LEFT_TO_THE_LAUNCHER = (
    "zero_optimization.stage",
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_param.device",
    "zero_optimization.offload_param.nvme_path",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
)
"""Entries whose "auto" is what accelerate's launcher says of them."""

OTHER_DIMENSIONS = ("tensor_parallel.autotp_size", "sequence_parallel_size", "expert_parallel.autoep_size")

QUANTIZED = "zero_optimization.zero_quantized_nontrainable_weights"

GRADIENTS = "gradient_allreduce_op"


@frozen
class DeepSpeedConfiguration:
    """A configuration that the arguments have completed.

    values: all of it, as `deepspeed.initialize` takes it, but for what only the model says.
    problems: a sentence for everything in it that cannot work, or that the arguments contradict.
    """

    values: dict[str, Any]
    problems: Sequence[str] = ()

    @property
    def stage(self) -> int:
        """How much is spread over the processes: 0 nothing, 1 the optimizer, 2 and gradients, 3 and weights."""
        return int(entry(self.values, "zero_optimization.stage", 0))

    @property
    def half(self) -> str | None:
        """The half format that the engine computes in, fp16 or bf16."""
        return next((name for name in HALVES if entry(self.values, f"{name}.enabled", False) is True), None)

    @property
    def offloads_optimizer(self) -> bool:
        """Whether the optimizer's step is taken on the processor for a model on another device."""
        device = entry(self.values, "zero_optimization.offload_optimizer.device", "none")
        return device != "none" or bool(entry(self.values, "zero_optimization.cpu_offload", False))

    @property
    def consolidates(self) -> bool:
        """Whether the weights are to be put together in one process when they are saved."""
        return entry(self.values, "zero_optimization.stage3_gather_16bit_weights_on_model_save", False) is True

    @property
    def optimizer(self) -> dict[str, Any] | None:
        """The section of an optimizer that the engine makes itself."""
        return self.values.get("optimizer")

    @property
    def scheduler(self) -> dict[str, Any] | None:
        """The section of a schedule of DeepSpeed's own."""
        return self.values.get("scheduler")

    def for_length(self, length: Length) -> tuple[dict[str, Any], list[str]]:
        """The scheduler's section for a run of this length, and what it contradicts."""
        values = deepcopy({"scheduler": self.scheduler or {}})
        problems = list(fill(values, OF_LENGTH, length))
        return values["scheduler"], problems

    def before_model(self) -> dict[str, Any]:
        """What there is to say before there is a model."""
        values = deepcopy(self.values)
        values.pop("scheduler", None)
        for path in autos_in(values):
            remove(values, path)
        return values

    def for_model(self, model: Any) -> tuple[dict[str, Any], list[str]]:
        """What the engine is given for this model, and what the model does not say of it."""
        values = deepcopy(self.values)
        values.pop("scheduler", None)
        if self.stage < 3:
            for rule in OF_HIDDEN_SIZE[1:]:
                remove(values, rule.path)
        wanted = [path for path in autos_in(values) if path in {rule.path for rule in OF_HIDDEN_SIZE}]
        size = hidden_size(model)
        if size is None and wanted:
            return values, [
                f"You chose {' and '.join(wanted)}='auto' in DeepSpeed's configuration, but {type(model).__name__} "
                "has no config that names its hidden_size; give numbers there."
            ]
        problems = list(fill(values, OF_HIDDEN_SIZE, size)) if wanted else []
        if self.stage == 0 and self.half is None:
            values["gradient_clipping"] = 0.0  # the learner clips then, as the engine would not tell the norm
        return values, problems


def deepspeed_configuration(args: TrainingArguments) -> DeepSpeedConfiguration | None:
    """What the arguments, or else the launcher, choose of DeepSpeed; None where neither chooses it."""
    try:
        given = deepcopy(args.deepspeed) if args.deepspeed else launched_configuration()
    except ConfigurationError as error:
        return DeepSpeedConfiguration({}, error.problems)
    if given is None:
        return None
    if not isinstance(given, dict):
        return DeepSpeedConfiguration({}, [f"You chose deepspeed={shown(given)}, but it is no mapping; give one."])
    problems = list(_completed(given, args))
    problems += _refused(given)
    return DeepSpeedConfiguration(given, problems)


def hidden_size(model: Any) -> int | None:
    """The size of a model's hidden states, as its config names it; of several the largest."""
    config: Any = getattr(model, "config", None)
    for each in (config, getattr(config, "text_config", None)):
        if isinstance(found := getattr(each, "hidden_size", None), int):
            return found
        if sizes := getattr(each, "hidden_sizes", None):
            return int(max(sizes))
    return None


def is_installed() -> bool:
    """Whether the package deepspeed is there."""
    return importlib.util.find_spec("deepspeed") is not None


def as_json(config: dict[str, Any]) -> str:
    """A configuration as a file of it would read."""
    return json.dumps(config, indent=2, sort_keys=True, default=str)


def _completed(config: dict[str, Any], args: TrainingArguments) -> Iterator[str]:
    """Fill in what the arguments say; a sentence for each contradiction."""
    for path in LEFT_TO_THE_LAUNCHER:
        section, name = section_of(config, path)
        if section is not None and section.get(name) == AUTO:
            section[name] = launched_value(path)
    for name in HALVES:
        if args.mixed_precision == name and name not in config:
            config[name] = {"enabled": True, **({"auto_cast": True} if name == "fp16" else {})}
    if isinstance(config.get("optimizer"), dict):
        config["optimizer"].setdefault("params", {})
    yield from fill(config, OF_ARGUMENTS, args)
    if "steps_per_print" not in config:  # hexloop's loggers tell of the run, for whom no device has to be waited for
        config["steps_per_print"] = math.inf
        config.setdefault("timers", {"throughput": {"enabled": False}})
    if "optimizer" not in config:
        config.setdefault("zero_allow_untested_optimizer", True)
        config.setdefault("zero_force_ds_cpu_optimizer", False)
    known = {rule.path for rule in (*OF_HIDDEN_SIZE, *OF_LENGTH)}
    for path in autos_in(config):
        if path not in known:
            yield (
                f"You chose {path}='auto' in DeepSpeed's configuration, but no argument says anything of it; "
                "give a value, or leave it out."
            )


def _refused(config: dict[str, Any]) -> Iterator[str]:
    """A sentence for everything that DeepSpeed cannot do, or hexloop cannot do with it."""
    stage = entry(config, "zero_optimization.stage", 0)
    if stage not in STAGES:
        yield _sentence("zero_optimization.stage", stage, "the stages of ZeRO are 0, 1, 2 and 3", "choose one of them")
        return
    yield from _refused_offloads(config, stage)
    if all(entry(config, f"{name}.enabled", False) is True for name in HALVES):
        yield "You chose fp16 and bf16 in DeepSpeed's configuration, but an engine computes in one; disable the other."
    if entry(config, "amp.enabled", False) is True:
        if stage > 0:
            yield _sentence("amp.enabled", True, f"apex does not work with ZeRO stage {stage}", "use fp16 or bf16")
        elif importlib.util.find_spec("apex") is None:
            yield _sentence("amp.enabled", True, "the package apex is not installed", "use fp16 or bf16")
    if entry(config, QUANTIZED, False) is True:
        yield _sentence(QUANTIZED, True, "a checkpoint keeps every weight in its own format", "leave it out")
    operation = entry(config, GRADIENTS, "mean")
    if str(operation).lower() not in ("mean", "sum"):
        yield _sentence(GRADIENTS, operation, "it takes mean or sum", "choose one of them")
    elif stage == 3 and str(operation).lower() == "sum":
        yield _sentence(GRADIENTS, operation, "ZeRO 3 only takes means", "leave it out, or choose a lower stage")
    for path in OTHER_DIMENSIONS:
        size = entry(config, path, 1)
        if size not in (0, 1):
            yield _sentence(
                path, size, "hexloop spreads data over processes, and no other dimension yet", "set it to 1"
            )


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


def _sentence(path: str, value: object, because: str, instead: str) -> str:
    return f"You chose {path}={shown(value)} in DeepSpeed's configuration, but {because}; {instead}."
