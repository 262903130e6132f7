"""Choose an adapter for every port: the one that the caller passed, or else the one that the arguments name.

Precisions and loggers are tables. To add one, add a file to its folder in `hexloop.adapters` and a row here. Kinds of
devices are in `hexloop.adapters.device.torch.kinds`, engines in `hexloop.app.engines`, storages in
`hexloop.app.assembly.storage`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, Literal, TypedDict

from attrs import define, evolve

from hexloop.adapters.background import ThreadBackground
from hexloop.adapters.clock import SystemClock
from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.hub.hugging_face import HuggingFaceHub
from hexloop.adapters.interrupts import (
    Deadline,
    FileTouched,
    NoInterrupts,
    PolledInterrupts,
    SeveralInterrupts,
    SignalInterrupts,
)
from hexloop.adapters.journal import JsonLinesJournal, NoJournal, checked_notes, line_batches
from hexloop.adapters.logger.console import Console
from hexloop.adapters.logger.json_lines import JsonLines
from hexloop.adapters.machine import PsutilMachine
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.adapters.storage.signed import SignedStorage
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.combinations import Setting, refused_combinations
from hexloop.app.assembly.fp8 import make_fp8
from hexloop.app.assembly.framework import Framework, torch_framework
from hexloop.app.assembly.ineffective import unanswered
from hexloop.app.assembly.passed_adapters import resolved
from hexloop.app.assembly.storage import (
    WorkingFolder,
    is_elsewhere,
    joined,
    read_key,
    refuse_forgeable_digests,
    storage_for,
)
from hexloop.app.assembly.trackers import logging_folder, named_loggers
from hexloop.app.callbacks.trackers import TRACKERS, available_trackers, missing_package
from hexloop.app.devices import broken_before, connect_device, device_kinds, missing_device
from hexloop.app.engines import engine_for, find_plugin, plugin_names
from hexloop.app.environment import sagemaker_data_parallel
from hexloop.app.joining import join
from hexloop.app.rules import rules_of
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.fail_safe import FailSafeJournal
from hexloop.domain.run_folder import JOURNAL, LOG, own_file
from hexloop.domain.wording import did_you_mean
from hexloop.ports.collectives import Collectives
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine
from hexloop.ports.hub import Hub
from hexloop.ports.learner import Precision
from hexloop.ports.logger import Journal, Logger
from hexloop.ports.mesh import DATA, Mesh, flat_mesh
from hexloop.ports.parallelism import Parallelism
from hexloop.ports.process import Background, Clock, Interrupts, Machine
from hexloop.ports.storage import Storage

__all__ = ["checked_notes", "line_batches"]
"""Adapters' names that the rest of the app gets from here."""


LOGGER = logging.getLogger("hexloop")


class Injected(TypedDict, total=False):
    """The adapters that a caller may pass to the Trainer. None or a missing key lets the arguments choose.

    Names stand for adapters where it is clear which: of a device, a precision, a folder or URL, and trackers.

    Args:
        device: what the run computes on.
        precision: the number format of the computation.
        parallelism: the engine that spreads the run over processes.
        collectives: how the processes communicate.
        storage: where checkpoints are written.
        hub: where models are published.
        loggers: what receives logged values, instead of all default output.
        clock: the time.
        interrupts: what may request a stop.
        journal: the record of the run's events.
        machine: measures what the machine does, for system metrics.
        framework: the library that computes, by default PyTorch.
    """

    device: Device | str | None
    precision: Precision[Any] | Literal["fp32", "tf32", "bf16", "fp16"] | None
    parallelism: Parallelism[Any] | None
    collectives: Collectives | None
    storage: Storage | str | os.PathLike[str] | None
    hub: Hub | None
    loggers: Sequence[Logger | str] | Logger | str | None
    clock: Clock | None
    interrupts: Interrupts | None
    journal: Journal | None
    machine: Machine | None
    framework: Framework[Any] | None


@define
class Adapters:
    """The adapters of a run, one for each port; loggers by name, without those of the callbacks of trackers.

    collectives: of all processes. data_collectives: of those that read different samples.
    """

    device: Device
    precision: Precision[Any]
    parallelism: Parallelism[Any]
    collectives: Collectives
    data_collectives: Collectives
    mesh: Mesh
    storage: Storage
    hub: Hub
    loggers: Mapping[str, Logger]
    clock: Clock
    background: Background
    interrupts: Interrupts
    journal: Journal
    machine: Machine
    framework: Framework[Any]
    engine: Engine[Any, Any]
    """The engine that the arguments choose, even if another parallelism was passed."""


def choose_adapters(args: TrainingArguments, injected: Injected, started_in: WorkingFolder | None = None) -> Adapters:
    """Return an adapter for every port.

    started_in: where the relative paths of the arguments start, by default here.
    Raises ConfigurationError with all problems: a missing device, a precision that the device does not support, an
    unknown logger, a combination that the table in `combinations` rejects. Raises TypeError for an unknown keyword.
    """
    if unknown := sorted(injected.keys() - Injected.__annotations__.keys()):
        raise TypeError(f"Trainer() got an unexpected keyword argument {unknown[0]!r}; {_remedy(unknown[0], args)}")
    problems: list[str] = []
    started_in = WorkingFolder() if started_in is None else started_in
    folder = started_in.locate(args.output_dir or "trainer_output")
    makers = {name: partial(make, folder) for name, make in LOGGERS.items()}
    passed = resolved(injected, args, started_in, makers, ("fp32", "tf32", *PRECISIONS))
    framework, given_loggers = passed.get("framework") or torch_framework(), passed.get("loggers")
    loggers = choose_loggers(args, problems, folder) if given_loggers is None else named_loggers(given_loggers)
    engine = engine_for(args)
    try:
        engine.begin(args)
        device = passed.get("device") or framework.device(args) or choose_device(args)
        storage = choose_storage(args, passed.get("storage"), folder)
    except ConfigurationError as error:
        raise ConfigurationError([*error.problems, *_broken_devices(args), *problems]) from error
    parallelism = passed.get("parallelism") or _parallelism(engine, args, device, problems)
    precision = passed.get("precision") or choose_precision(args, device, parallelism.capabilities.sharded)
    if isinstance(precision, str):
        precision = named_precision(precision, device)
    if args.n_gpu > 1 and not parallelism.capabilities.several_devices:
        args.distributed_environment = evolve(args.distributed_environment, n_gpu=1)
    problems += engine.problems(args)
    problems += unanswered(framework, args)
    setting = Setting(args, device.capabilities, precision.name, parallelism.capabilities)
    problems += refused_combinations(setting)
    clock = passed.get("clock") or SystemClock()
    interrupts = passed.get("interrupts") or choose_interrupts(args, clock, problems, started_in=started_in)
    journal = passed.get("journal") or choose_journal(args, storage, problems)
    if problems:
        raise ConfigurationError(problems)
    if sagemaker_data_parallel() and args.should_log:
        LOGGER.warning(SAGEMAKER, args.world_size)
    collectives = passed.get("collectives") or join(args)
    mesh = _mesh(engine, args, collectives)
    return Adapters(
        device=device,
        precision=precision,
        parallelism=parallelism,
        collectives=collectives,
        data_collectives=collectives if mesh.data.size == mesh.size else collectives.among(mesh.ranks(*DATA)),
        mesh=mesh,
        storage=storage,
        hub=passed.get("hub") or HuggingFaceHub(token=args.hub_token),
        loggers=loggers,
        clock=clock,
        background=ThreadBackground(),
        interrupts=interrupts,
        journal=FailSafeJournal(journal, clock),
        machine=injected.get("machine") or PsutilMachine(storage.capabilities.local_folder or os.getcwd()),
        framework=framework,
        engine=engine,
    )


SAGEMAKER = (
    "SageMaker's data parallelism becomes torch's DDP in hexloop; this run has %d of its processes. To start them "
    "without SageMaker's library, set distribution={'torch_distributed': {'enabled': True}} in the estimator."
)

CONSTRUCTOR = (
    *("model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class", "model_init"),
    *("compute_loss_func", "compute_metrics", "callbacks", "optimizers", "optimizer_cls_and_kwargs"),
    "preprocess_logits_for_metrics",
)
"""The Trainer's parameters that are no adapters."""


def _remedy(name: str, args: TrainingArguments) -> str:
    """Return what to do about an unknown keyword of the Trainer."""
    if hasattr(args, name):
        return f"it is one of the training arguments, so pass it to {type(args).__name__}."
    return did_you_mean(name, (*CONSTRUCTOR, *Injected.__annotations__), "leave it out.", similarity=0.75)


def _parallelism(
    engine: Engine[Any, Any], args: TrainingArguments, device: Device, problems: list[str]
) -> Parallelism[Any]:
    """Return the engine's adapter. If it cannot be created, add the reasons to `problems` and return a placeholder."""
    try:
        return engine.make(args, device)
    except ConfigurationError as error:
        problems += error.problems
        return SingleProcess()


def _mesh(engine: Engine[Any, Any], args: TrainingArguments, collectives: Collectives) -> Mesh:
    """Return the mesh of the engine. Raises ConfigurationError if it has another size than the run."""
    if engine.mesh is None:
        return flat_mesh(collectives.rank, collectives.world_size)
    dimensions = engine.mesh(args)
    size = prod(length for _, length in dimensions)
    if size != collectives.world_size:
        described = " x ".join(f"{name} {length}" for name, length in dimensions)
        raise ConfigurationError(
            f"The engine {engine.name} arranges {size} processes ({described}), but the run has "
            f"{collectives.world_size}; start {size}, or change the engine's options."
        )
    return Mesh(dimensions, collectives.rank)


def disable_replication(adapters: Adapters, args: TrainingArguments) -> None:
    """Train on one device of this process, with a model that cannot be replicated on all of them."""
    if adapters.parallelism.capabilities.several_devices:
        adapters.parallelism = SingleProcess()
        args.distributed_environment = evolve(args.distributed_environment, n_gpu=1)


def system_clock() -> Clock:
    """Return the clock of the operating system."""
    return SystemClock()


def choose_storage(args: TrainingArguments, given: Storage | None = None, folder: str | None = None) -> Storage:
    """Return the given storage, or that of `folder`, by default the output folder, with the key of the arguments."""
    signatures = read_key(args.checkpoint_key)
    if given is None:
        return storage_for(folder or args.output_dir or "trainer_output", signatures=signatures)
    if signatures is None:
        return given
    refuse_forgeable_digests(given)
    return SignedStorage(given, signatures)


def choose_device(args: TrainingArguments) -> Device:
    """Return the device that the arguments name, or the best one available.

    Raises ConfigurationError if it is not available, or if hexloop has no adapter for it.
    """
    name = args.device_name
    kind, _, number = name.partition(":")
    row = device_kinds().get(kind)
    if row is not None and args.world_size > 1 and row.is_available() and int(number or 0) < row.count():
        local = args.distributed_environment.local_world_size or args.world_size
        connect_device(name, args.local_process_index, local)
    device = None if row is None else row.device(int(number or 0))
    if device is not None:
        for sentence in _broken_devices(args):
            LOGGER.warning(sentence)
        return device
    raise missing_device(name)


def _broken_devices(args: TrainingArguments) -> list[str]:
    """Return a sentence for each preferred kind of device whose package cannot be imported."""
    name = args.device_name
    return [
        f"No {preferred} is used, but {name}: {found.reason}; {found.advice}."
        for preferred, found in (() if args.use_cpu else broken_before(name))
    ]


def cpu_device() -> Device:
    """Return the CPU."""
    from hexloop.adapters.device.torch import CpuDevice

    return CpuDevice()


def precision_name(args: TrainingArguments) -> str:
    """Return the name of the precision that the arguments select."""
    if args.mixed_precision != "no":
        return args.mixed_precision
    return "tf32" if args.tf32 else "fp32"


def choose_precision(args: TrainingArguments, device: Device, shards: bool = False) -> Precision[Any]:
    """Return the precision that the arguments select, on this device. An engine may apply one itself.

    shards: whether the engine shards the weights.
    """
    if (applied := engine_for(args).precision(args)) is not None:
        return PlainPrecision(applied)
    name, device_type = precision_name(args), device.name.partition(":")[0]
    if name == "fp16" and device_type == "cpu" and not rules_of(args).own_precision:
        return PlainPrecision()  # transformers ignores fp16 on a CPU
    if name == "fp8" and (recipe := args.fp8_recipe) is not None:
        return make_fp8(recipe, device, args.should_log, shards)
    return named_precision(name, device)


def named_precision(name: str, device: Device) -> Precision[Any]:
    """Return the precision of that name on a device."""
    make = PRECISIONS.get(name)
    return PlainPrecision(name) if make is None else make(device.name.partition(":")[0])


def _bf16(device_type: str) -> Precision[Any]:
    from hexloop.adapters.precision.autocast import Bf16Precision

    return Bf16Precision(device_type)


def _fp16(device_type: str) -> Precision[Any]:
    from hexloop.adapters.precision.autocast import Fp16Precision

    return Fp16Precision(device_type)


PRECISIONS: dict[str, Callable[[str], Precision[Any]]] = {"bf16": _bf16, "fp16": _fp16}
"""From the name of a precision to its adapter, given the type of the device.

Other names get the adapter that computes in the tensors' own dtypes. `combinations` rejects what the device lacks.
"""


def choose_interrupts(
    args: TrainingArguments,
    clock: Clock,
    problems: list[str],
    default_signals: Sequence[str] = (),
    started_in: WorkingFolder | None = None,
) -> Interrupts:
    """Return what may stop the run: signals, a stop file, a deadline.

    default_signals: used if the arguments do not name any. started_in: where a relative `stop_file` starts, by default
    here. Adds to `problems` if this system lacks a signal.
    """
    names = list(default_signals if args.interrupts is None else args.interrupts)
    if args.enable_jit_checkpoint and "SIGTERM" not in names:
        names.append("SIGTERM")
    known = [name for name in names if hasattr(signal, name)]
    if known != names:
        problems.append(
            f"interrupts={names} contains signals that this system does not have; choose among {known}, or use "
            "stop_file."
        )
    sources: list[Interrupts] = []
    started_in = WorkingFolder() if started_in is None else started_in
    if known:
        sources.append(SignalInterrupts([signal.Signals[name] for name in known]))
    if args.stop_file is not None:
        sources.append(PolledInterrupts(FileTouched(started_in.locate(args.stop_file))))
    if args.stop_after is not None:
        sources.append(PolledInterrupts(Deadline(args.stop_after, args.stop_margin, clock)))
    if len(sources) > 1:
        return SeveralInterrupts(sources)
    return sources[0] if sources else NoInterrupts()


def choose_journal(args: TrainingArguments, storage: Storage, problems: list[str]) -> Journal:
    """Return the journal of the run, a file next to its checkpoints if they are in a local folder.

    Adds to `problems` if steps are to be recorded and there is no such folder.
    """
    folder = storage.capabilities.local_folder
    if folder is None and args.journal == "steps":
        problems.append(
            f"journal='steps' needs a local folder, but the output goes to {storage.capabilities.location}, which "
            "cannot be appended to. Set journal='events', or pass journal=JsonLinesJournal(...) to the Trainer."
        )
    if not keeps_records(args) or folder is None or args.process_index != 0:
        return NoJournal()
    return JsonLinesJournal(own_file(folder, JOURNAL))


def keeps_records(args: TrainingArguments) -> bool:
    """Return whether a run records what happens in it: not with `journal="off"`, nor if it leaves no checkpoints."""
    return args.journal == "steps" or (args.journal == "events" and args.save_strategy != "no")


def choose_loggers(args: TrainingArguments, problems: list[str], folder: str) -> dict[str, Logger]:
    """Return the loggers that `report_to` names, hexloop's or those of installed packages, without trackers.

    Adds to `problems` for each name that is unknown or cannot be used. Trackers have callbacks, which make their
    loggers; see `hexloop.app.callbacks.trackers`.
    """
    names = list(args.report_to or ()) if args.should_log else []
    is_remote = is_elsewhere(str(args.output_dir))
    if names == ["all"]:
        trackers = [name for name in available_trackers() if not (is_remote and TRACKERS[name].is_local)]
        names = [*(name for name in LOGGERS if name != "console"), *plugin_names("loggers"), *trackers]
    loggers: dict[str, Logger] = {}
    for name in names:
        plugin = find_plugin("loggers", name)
        is_local = name == "json_lines" or (name in TRACKERS and TRACKERS[name].is_local)
        if is_local and is_remote and not (name == "tensorboard" and logging_folder(args)):
            problems.append(
                f"report_to={name!r} needs a local folder, but output_dir is a URL. "
                "Pass loggers=[...] with a local folder to the Trainer."
            )
        elif name in LOGGERS:
            loggers[name] = LOGGERS[name](folder)
        elif plugin is not None:
            loggers[name] = plugin()
        elif name in TRACKERS:
            problems += filter(None, [missing_package(name, f"report_to={name!r}")])
        else:
            known = [*TRACKERS, *LOGGERS, *plugin_names("loggers")]
            remedy = did_you_mean(
                name,
                known,
                f"choose one of {', '.join(known)}, or pass loggers=[...] to the Trainer.",
                spell=repr,
                similarity=0.7,
            )
            problems.append(f"report_to={name!r} is not a tracker that hexloop knows; {remedy}")
    return loggers


LOGGERS: dict[str, Callable[[str], Logger]] = {
    "json_lines": lambda folder: JsonLines(joined(folder, LOG)),
    "console": lambda folder: Console(sys.stdout),
}
"""From a name in `report_to` to the logger, given the output folder, for those that are no trackers."""
