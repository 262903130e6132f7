"""The composition root: which adapter answers which port, by the arguments and by what the caller injects."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from attrs import define, evolve

from hexloop.adapters.background.thread import ThreadBackground
from hexloop.adapters.clock.clocks import SystemClock
from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.hub.memory import NoHub
from hexloop.adapters.interrupts.manual import NoInterrupts
from hexloop.adapters.interrupts.polling import Deadline, FileTouched, PolledInterrupts, SeveralInterrupts
from hexloop.adapters.interrupts.signals import SignalInterrupts
from hexloop.adapters.journal.json_lines import JsonLinesJournal
from hexloop.adapters.journal.memory import NoJournal
from hexloop.adapters.logger.console import Console
from hexloop.adapters.logger.json_lines import JsonLines
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.app.arguments import TrainingArguments
from hexloop.app.engines import engine_for
from hexloop.app.joining import join
from hexloop.app.plugins import find_plugin, plugin_names
from hexloop.app.wiring.combinations import refused_combinations
from hexloop.app.wiring.storage import is_elsewhere, joined, storage_for
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.fail_safe import FailSafeJournal
from hexloop.ports.background import Background
from hexloop.ports.clock import Clock
from hexloop.ports.collectives import Collectives
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine
from hexloop.ports.hub import Hub
from hexloop.ports.interrupts import Interrupts
from hexloop.ports.journal import Journal
from hexloop.ports.logger import Logger
from hexloop.ports.parallelism import Parallelism
from hexloop.ports.precision import Precision
from hexloop.ports.storage import Storage

JOURNAL = "journal.jsonl"
"""The file of a run's journal, beside its checkpoints."""


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
    journal: Journal | None


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
    background: Background
    interrupts: Interrupts
    journal: Journal
    engine: Engine[TrainingArguments, Any]
    """What the arguments chose, also where another parallelism was injected."""


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
    engine = engine_for(args)
    precision = injected.get("precision") or choose_precision(args, device)
    parallelism = injected.get("parallelism") or _parallelism(engine, args, device, problems)
    if args.n_gpu > 1 and not parallelism.capabilities.several_devices:
        args.surroundings = evolve(args.surroundings, n_gpu=1)
    problems += engine.problems(args)
    problems += refused_combinations(args, device.capabilities, precision.name, parallelism.capabilities)
    clock = injected.get("clock") or SystemClock()
    interrupts = injected.get("interrupts") or choose_interrupts(args, clock, problems)
    journal = injected.get("journal") or choose_journal(args, storage, problems)
    if problems:
        raise ConfigurationError(problems)
    collectives = injected.get("collectives") or join(args)
    return Adapters(
        device=device,
        precision=precision,
        parallelism=parallelism,
        collectives=collectives,
        storage=storage,
        hub=injected.get("hub") or NoHub(),
        loggers=loggers,
        clock=clock,
        background=ThreadBackground(),
        interrupts=interrupts,
        journal=FailSafeJournal(journal, clock),
        engine=engine,
    )


def _parallelism(
    engine: Engine[TrainingArguments, Any], args: TrainingArguments, device: Device, problems: list[str]
) -> Parallelism[Any]:
    """The engine's adapter; a single process, and what is wrong among `problems`, where it cannot be."""
    try:
        return engine.make(args, device)
    except ConfigurationError as error:
        problems += error.problems
        return SingleProcess()


def choose_device(args: TrainingArguments) -> Device:
    """The device that the arguments name, or the best that torch finds.

    Raises ConfigurationError where it is not there, or hexloop has no adapter for it.
    """
    import torch

    kind, index = args.device.type, args.device.index or 0
    if kind == "cpu":
        from hexloop.adapters.device.torch.base import CpuDevice

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
    if (applied := engine_for(args).precision(args)) is not None:
        return PlainPrecision(applied)
    if args.mixed_precision == "bf16":
        return Bf16Precision(device_type)
    if args.mixed_precision == "fp16":
        return Fp16Precision(device_type)
    return PlainPrecision(precision_name(args))


def choose_interrupts(
    args: TrainingArguments, clock: Clock, problems: list[str], unasked: Sequence[str] = ()
) -> Interrupts:
    """What the arguments let stop a run; the signals `unasked` where they say nothing of signals.

    Adds to `problems` where this system has no such signal.
    """
    names = list(unasked if args.interrupts is None else args.interrupts)
    if args.enable_jit_checkpoint and "SIGTERM" not in names:
        names.append("SIGTERM")
    known = [name for name in names if hasattr(signal, name)]
    if known != names:
        problems.append(
            f"You chose interrupts={names}, but this system has {known} only; choose among these, or use stop_file."
        )
    sources: list[Interrupts] = []
    if known:
        sources.append(SignalInterrupts([signal.Signals[name] for name in known]))
    if args.stop_file is not None:
        sources.append(PolledInterrupts(FileTouched(args.stop_file)))
    if args.stop_after is not None:
        sources.append(PolledInterrupts(Deadline(args.stop_after, args.stop_margin, clock)))
    if len(sources) > 1:
        return SeveralInterrupts(sources)
    return sources[0] if sources else NoInterrupts()


def choose_journal(args: TrainingArguments, storage: Storage, problems: list[str]) -> Journal:
    """Where the arguments let a run be noted: beside its checkpoints, where these are in a folder of this machine.

    Adds to `problems` where steps are to be noted and there is no such folder.
    """
    folder = storage.capabilities.local_folder
    if folder is None and args.journal == "steps":
        problems.append(
            f"You chose journal='steps', but the run's files go to {storage.capabilities.location}, where nothing can "
            "be appended; choose 'events', or pass journal=JsonLinesJournal(...) to the Trainer."
        )
    writes = args.journal == "steps" or (args.journal == "events" and args.save_strategy != "no")
    if not writes or folder is None or args.process_index != 0:
        return NoJournal()
    return JsonLinesJournal(os.path.join(folder, JOURNAL))


def choose_loggers(args: TrainingArguments, problems: list[str]) -> list[Logger]:
    """The trackers that `report_to` names, hexloop's own or installed ones; adds what is wrong to `problems`."""
    names = list(args.report_to or ()) if args.should_log else []
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

    return TensorBoard(args.logging_dir or os.environ.get("TENSORBOARD_LOGGING_DIR"))


LOGGERS: dict[str, Callable[[TrainingArguments], Logger]] = {
    "tensorboard": _tensorboard,
    "json_lines": lambda args: JsonLines(joined(str(args.output_dir), "log.jsonl")),
    "console": lambda args: Console(sys.stdout),
}
"""hexloop's own loggers by the names that `report_to` uses."""

NEED_A_FOLDER = ("tensorboard", "json_lines")
"""Those that append to a file in `output_dir`."""
