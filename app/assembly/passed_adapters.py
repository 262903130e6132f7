"""The adapters that a caller passes to the Trainer: names of some stand for adapters, and wrong objects are refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.hub import NoHub
from hexloop.adapters.interrupts import NoInterrupts
from hexloop.adapters.journal import NoJournal
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.framework import Framework
from hexloop.app.assembly.storage import WorkingFolder, storage_for
from hexloop.app.assembly.trackers import logging_folder, make_logger
from hexloop.app.callbacks.trackers import TRACKERS, missing_package
from hexloop.app.devices import device_kinds, missing_device
from hexloop.app.engines import find_plugin, plugin_names
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import Problem, RefusalError, did_you_mean, enumeration, shown
from hexloop.ports.collectives import Collectives
from hexloop.ports.device import Device
from hexloop.ports.hub import Hub
from hexloop.ports.learner import Precision
from hexloop.ports.logger import Journal, Logger
from hexloop.ports.parallelism import Parallelism
from hexloop.ports.process import Clock, Interrupts, Machine
from hexloop.ports.storage import Storage


@frozen
class PassedPort:
    """What a parameter of the Trainer takes: an adapter of a port, and for some a name.

    named: which names there are, in words; None if there are none. remedy: how to choose one without passing it.
    """

    port: Any
    remedy: str
    named: str | None = None


PORTS: Mapping[str, PassedPort] = {
    "device": PassedPort(
        Device,
        "set use_cpu, or choose the devices that the process sees, e.g. by CUDA_VISIBLE_DEVICES",
        "the name of a device, such as 'cpu' or 'cuda:0'",
    ),
    "precision": PassedPort(Precision, "set bf16=True or fp16=True in the arguments", "a name such as 'bf16'"),
    "parallelism": PassedPort(Parallelism, "set fsdp or deepspeed in the arguments"),
    "collectives": PassedPort(Collectives, "start the processes with torchrun or hexloop launch"),
    "storage": PassedPort(Storage, "set output_dir, which may be a URL", "a folder or a URL"),
    "hub": PassedPort(Hub, "set hub_model_id and hub_token in the arguments"),
    "loggers": PassedPort(Logger, "set report_to in the arguments for trackers by name", "the names of trackers"),
    "clock": PassedPort(Clock, "leave it out"),
    "interrupts": PassedPort(Interrupts, "leave it out"),
    "journal": PassedPort(Journal, "leave it out"),
    "machine": PassedPort(Machine, "leave it out"),
}
"""The port of each adapter that can be passed."""

Makers = Mapping[str, Callable[[], Logger]]


def resolved(
    injected: Mapping[str, Any],
    args: TrainingArguments,
    started_in: WorkingFolder,
    loggers: Makers,
    precisions: Sequence[str],
) -> dict[str, Any]:
    """Return the passed adapters, with an adapter in the place of each name; the device is noted in `args` instead.

    loggers: the loggers that are not trackers, by name. precisions: those that have a name, which stays.
    Raises ConfigurationError, with all problems, for names that are unknown or cannot be used, and for objects that are
    not adapters of the port.
    """
    found, problems = dict(injected), list[str]()
    for name, row in PORTS.items():
        value = found.get(name)
        try:
            if name == "device" and (text := _device_name(value)) is not None:
                _choose_device(text, args)
                found[name] = None
            elif name == "storage" and isinstance(value, str | os.PathLike) and os.fspath(value):
                found[name] = storage_for(started_in.locate(os.fsdecode(value)))
            elif name == "precision" and isinstance(value, str):
                if value not in precisions:
                    remedy = did_you_mean(value, precisions, f"choose among {', '.join(precisions)}", spell=repr)
                    raise ConfigurationError(_wrong(name, row, value, f"{remedy.rstrip('.')}"))
            elif name == "loggers" and value is not None:
                chosen = logging_folder(args)
                folder = None if chosen is None else started_in.locate(chosen)
                found[name] = [_logger(each, loggers, folder) for each in _several(value)]
            elif value is not None and (lacks := _lacks(row.port, value)) is not None:
                raise ConfigurationError(_wrong(name, row, value, lacks))
        except ConfigurationError as error:
            problems += error.problems
    framework: Any = injected.get("framework")
    if framework is not None and not isinstance(framework, Framework):
        problem = (
            f"framework takes an object whose class derives from {Framework.__module__}.Framework, and got "
            f"{shown(framework)}; leave it out for a model of torch."
        )
        problems.append(Problem(problem, kind=TypeError))
    if problems:
        raise ConfigurationError(problems)
    return found


def _wrong(name: str, row: PassedPort, value: object, lacks: str) -> Problem:
    """Return the problem of an object that is not what a parameter takes. lacks: what to do about this one."""
    methods = ", ".join(_methods(row.port))
    kind = row.port.__name__
    expected = f"a list of {kind} objects" if name == "loggers" else f"a {kind} object"
    named = "" if row.named is None else f" or {row.named},"
    problem = f"{name} takes {expected} (with the methods {methods}),{named} and got {shown(value)}; {lacks}"
    return Problem(f"{problem}{'' if problem.endswith('?') else '.'} Or {row.remedy}.", kind=TypeError)


def _methods(port: Any) -> list[str]:
    return [method for method in vars(port) if not method.startswith("_")]


def _lacks(port: Any, value: object) -> str | None:
    """Return what to do about an object that is not an adapter of a port; None if it is one."""
    methods = _methods(port)
    if isinstance(value, type):
        has_some = any(hasattr(value, method) for method in methods)
        return f"pass an object, {value.__name__}(...)" if has_some else f"pass a {port.__name__} object"
    missing = [method for method in methods if not hasattr(value, method)]
    if not missing:
        return None
    if len(missing) == len(methods):
        return f"pass a {port.__name__} object"
    return f"its class {type(value).__name__} lacks {enumeration(missing)}, which the port {port.__name__} has"


def _several(loggers: object) -> Iterable[Any]:
    """Return a list as it is, and a single logger or name as a list of one."""
    if isinstance(loggers, Iterable) and not isinstance(loggers, str | type):
        return loggers
    return [loggers]


def _logger(value: Any, loggers: Makers, folder: str | None) -> Any:
    """Return a logger, or the one that is called `value`. Raises ConfigurationError if it cannot be made.

    folder: where TensorBoard writes; None for its own choice.
    """
    row = PORTS["loggers"]
    if not isinstance(value, str):
        if (lacks := _lacks(Logger, value)) is not None:
            raise ConfigurationError(_wrong("loggers", row, value, lacks))
        return value
    if value in loggers:
        return loggers[value]()
    if (plugin := find_plugin("loggers", value)) is not None:
        return plugin()
    if value in TRACKERS:
        if (problem := missing_package(value, f"loggers={value!r}")) is not None:
            raise ConfigurationError(problem)
        return make_logger(value, options={"folder": folder} if value == "tensorboard" else None)
    known = [*TRACKERS, *loggers, *plugin_names("loggers")]
    remedy = did_you_mean(value, known, f"choose among {', '.join(known)}", spell=repr, similarity=0.7)
    raise ConfigurationError(_wrong("loggers", row, value, remedy))


def _device_name(value: object) -> str | None:
    """Return the name of a device that is passed as a text, or as torch's own object; None for other objects."""
    torch = sys.modules.get("torch")
    is_named = isinstance(value, str) or (torch is not None and isinstance(value, torch.device))
    return str(value).lower() if is_named else None


def _choose_device(name: str, args: TrainingArguments) -> None:
    """Let `name` be the device of the arguments in this process. Raises ConfigurationError if it cannot be used."""
    kind, _, number = name.partition(":")
    row = device_kinds().get(kind)
    if row is None:
        remedy = did_you_mean(kind, device_kinds(), f"choose among {', '.join(device_kinds())}", spell=repr)
        raise ConfigurationError(_wrong("device", PORTS["device"], name, remedy))
    if number and args.world_size > 1 and kind != "cpu":
        refusal = RefusalError(
            f"all {args.world_size} processes would use this one device", f"name the kind alone, device={kind!r}"
        )
        raise ConfigurationError(f"You chose device={name!r}, but {refusal}.")
    if args.use_cpu and kind != "cpu":
        raise ConfigurationError(
            f"You chose device={name!r} and use_cpu=True, which exclude each other; leave one out."
        )
    if not row.is_available() or (number and not (number.isdecimal() and int(number) < max(1, row.count()))):
        raise missing_device(name)
    chosen = name if number or kind == "cpu" else row.chosen(args.local_process_index)
    n_gpu = 0 if kind == "cpu" else 1 if number else args.distributed_environment.n_gpu
    args.distributed_environment = evolve(args.distributed_environment, device=chosen, n_gpu=n_gpu)


KEPT_IN_PRIVATE = ("device", "precision", "framework", "clock", "collectives", "parallelism")
"""The adapters of the user's that a private run uses. Others are places and services that it must not touch."""


def private_adapters(passed: Mapping[str, Any], alone: bool = False) -> dict[str, Any]:
    """Return the adapters of a run that no one else sees: it reports and publishes nothing and is not interrupted.

    passed: those that the user passed. alone: the model is not spread over processes.
    """
    kept = {name: each for name, each in passed.items() if name in KEPT_IN_PRIVATE}
    if alone:
        kept["parallelism"] = SingleProcess()
    return {**kept, "loggers": [], "hub": NoHub(), "journal": NoJournal(), "interrupts": NoInterrupts()}
