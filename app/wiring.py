"""The composition root: which adapter answers which port, by the arguments and by what the caller injects."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from attrs import define

from hexloop.adapters.clock.system import SystemClock
from hexloop.adapters.collectives.single import SingleProcessCollectives
from hexloop.adapters.hub.none import NoHub
from hexloop.adapters.interrupts.none import NoInterrupts
from hexloop.adapters.logger.console import Console
from hexloop.adapters.logger.json_lines import JsonLines
from hexloop.adapters.parallelism.single import SingleProcess
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.app.arguments import TrainingArguments
from hexloop.app.combinations import refused_combinations
from hexloop.app.plugins import find_plugin, plugin_names
from hexloop.app.storages import is_elsewhere, storage_for
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.clock import Clock
from hexloop.ports.collectives import Collectives
from hexloop.ports.device import Device
from hexloop.ports.hub import Hub
from hexloop.ports.interrupts import Interrupts
from hexloop.ports.logger import Logger
from hexloop.ports.parallelism import Parallelism
from hexloop.ports.precision import Precision
from hexloop.ports.storage import Storage


class Injected(TypedDict, total=False):
    """The adapters that a caller may bring; None, as leaving one out, lets the arguments choose."""

    device: Device | None
    precision: Precision[Any] | None
    parallelism: Parallelism[Any] | None
    collectives: Collectives | None
    storage: Storage | None
    hub: Hub | None
    loggers: Sequence[Logger] | None
    clock: Clock | None
    interrupts: Interrupts | None


@define
class Adapters:
    """One answer to each port."""

    device: Device
    precision: Precision[Any]
    parallelism: Parallelism[Any]
    collectives: Collectives
    storage: Storage
    hub: Hub
    loggers: Sequence[Logger]
    clock: Clock
    interrupts: Interrupts


def choose_adapters(args: TrainingArguments, injected: Injected) -> Adapters:
    """An adapter for every port.

    Raises ConfigurationError with everything that cannot work: a device that is not there, a precision that the device
    lacks, a tracker that nobody knows, a combination that the table in `combinations` refuses.
    """
    problems: list[str] = []
    given_loggers = injected.get("loggers")
    loggers = choose_loggers(args, problems) if given_loggers is None else list(given_loggers)
    try:
        device = injected.get("device") or choose_device(args)
        storage = injected.get("storage") or storage_for(args.output_dir or "trainer_output")
    except ConfigurationError as error:
        raise ConfigurationError([*error.problems, *problems]) from error
    precision = injected.get("precision") or choose_precision(args, device)
    parallelism = injected.get("parallelism") or SingleProcess()
    problems += refused_combinations(args, device.capabilities, precision.name, parallelism.capabilities)
    if problems:
        raise ConfigurationError(problems)
    return Adapters(
        device=device,
        precision=precision,
        parallelism=parallelism,
        collectives=injected.get("collectives") or SingleProcessCollectives(),
        storage=storage,
        hub=injected.get("hub") or NoHub(),
        loggers=loggers,
        clock=injected.get("clock") or SystemClock(),
        interrupts=injected.get("interrupts") or NoInterrupts(),
    )


def choose_device(args: TrainingArguments) -> Device:
    """The device that the arguments name, or the best that torch finds.

    Raises ConfigurationError where it is not there, or hexloop has no adapter for it.
    """
    import torch

    kind, index = args.device.type, args.device.index or 0
    if kind == "cpu":
        from hexloop.adapters.device.torch.cpu import CpuDevice

        return CpuDevice()
    if kind == "cuda" and index < torch.cuda.device_count():
        from hexloop.adapters.device.torch.cuda import CudaDevice

        return CudaDevice(index)
    if kind == "mps" and torch.backends.mps.is_available():
        from hexloop.adapters.device.torch.mps import MpsDevice

        return MpsDevice()
    known = kind in ("cuda", "mps")
    because = "torch finds no such device here" if known else "hexloop has no adapter for it yet"
    raise ConfigurationError(
        [f"You chose the device {args.device}, but {because}; choose another, pass device=..., or set use_cpu=True."]
    )


def precision_name(args: TrainingArguments) -> str:
    """The number format that the arguments ask for."""
    if args.mixed_precision != "no":
        return args.mixed_precision
    return "tf32" if args.tf32 else "fp32"


def choose_precision(args: TrainingArguments, device: Device) -> Precision[Any]:
    """The number format that the arguments name, on this device."""
    from hexloop.adapters.precision.autocast import Bf16Precision, Fp16Precision

    device_type = device.name.partition(":")[0]
    if args.bf16:
        return Bf16Precision(device_type)
    if args.fp16:
        return Fp16Precision(device_type)
    return PlainPrecision(precision_name(args))


def choose_loggers(args: TrainingArguments, problems: list[str]) -> list[Logger]:
    """The trackers that `report_to` names, hexloop's own or installed ones; adds what is wrong to `problems`."""
    names = list(args.report_to or ())
    if names == ["all"]:
        names = [*(name for name in LOGGERS if name != "console"), *plugin_names("loggers")]
    loggers: list[Logger] = []
    for name in names:
        plugin = find_plugin("loggers", name)
        if name in NEED_A_FOLDER and is_elsewhere(str(args.output_dir)):
            problems.append(
                f"You chose report_to={name!r} and an output_dir that is a URL, where nothing can be appended; pass "
                "loggers=[...] to the Trainer, with a folder of this machine."
            )
        elif name in LOGGERS:
            loggers.append(LOGGERS[name](args))
        elif plugin is not None:
            loggers.append(plugin())
        else:
            problems.append(
                f"You chose report_to={name!r}, but no logger of that name is installed; choose among "
                f"{', '.join([*LOGGERS, *plugin_names('loggers')])}, or pass loggers=[...] to the Trainer."
            )
    return loggers


def _tensorboard(args: TrainingArguments) -> Logger:
    from hexloop.adapters.logger.tensorboard import TensorBoard

    return TensorBoard()


LOGGERS: dict[str, Callable[[TrainingArguments], Logger]] = {
    "tensorboard": _tensorboard,
    "json_lines": lambda args: JsonLines(os.path.join(str(args.output_dir), "log.jsonl")),
    "console": lambda args: Console(sys.stdout),
}
"""hexloop's own loggers by the names that `report_to` uses."""

NEED_A_FOLDER = ("tensorboard", "json_lines")
"""Those that append to a file in `output_dir`."""
