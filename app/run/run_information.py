"""Facts of a run: for its loggers, and for repeating it."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import sys
import threading
from array import array
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from hexloop.app.assembly.adapters import keeps_records
from hexloop.app.assembly.framework import Observer
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.sharing import global_batch_size
from hexloop.app.run.command import command_of_process
from hexloop.app.run.repository import state_of_repository
from hexloop.domain.events import TrainBegan
from hexloop.domain.redaction import redact, redacted
from hexloop.domain.run import Run
from hexloop.ports.logger import Fact, Journal, RunInformation


def information_of(parts: TrainerParts, run: Run[Any, Any]) -> RunInformation:
    """Return the description of a run for its loggers, without secrets."""
    args, model, state = parts.args, parts.unwrapped_model, parts.state
    parameters, trained = parts.adapters.framework.parameter_counts(parts)
    adapters = parts.adapters.framework.weights(model).adapters
    live, trial, group = parts.live_trial, state.trial_name, str(args.run_name or args.output_dir)
    if live is not None:
        trial, group = live.label or live.name, live.group
    is_trial = state.is_hyper_param_search or trial is not None
    return RunInformation(
        name=redact(args.run_name or str(args.output_dir)),
        configuration=redacted(_json_like(args.to_dict())),
        folder=redact(parts.folder),
        total_steps=run.plan.total_steps,
        step=run.state.step,
        run=run.state.run,
        chosen_name=None if args.run_name is None else redact(args.run_name),
        model_configuration=redacted(_json_like(_configuration_of(getattr(model, "config", None)))),
        adapter_configuration=redacted(_json_like(_configuration_of(adapters))),
        parameters=parameters,
        trainable_parameters=trained,
        trial=trial,
        trial_parameters=_json_like(state.trial_params or {}),
        group=redact(group) if is_trial else None,
        model=model,
    )


def _configuration_of(config: Any) -> dict[str, Any]:
    """Return the configuration of a model, or of its PEFT adapters by name, as a dictionary."""
    if isinstance(config, Mapping):
        return {name: _configuration_of(each) or each for name, each in config.items()}
    to_dict = getattr(config, "to_dict", None)
    found = to_dict() if callable(to_dict) else {}
    return found if isinstance(found, dict) else {}


def _json_like(value: Any) -> Any:
    """Return a value as JSON can hold it; what it cannot hold becomes text."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _json_like(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_like(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return str(value).removeprefix("torch.")


MOST_SAMPLES = 1 << 20
"""Samples of the first epoch whose order is in the digest, so that a card of a large data set is written at once."""


def reproduction_of(parts: TrainerParts) -> list[str]:
    """Return what is needed to repeat the run and get the same weights, a fact a line."""
    args = parts.args
    steps = f"{global_batch_size(args, parts.adapters.mesh.data, parts.train_batch_size)} samples a batch"
    if args.gradient_accumulation_steps > 1:
        steps += f", {args.gradient_accumulation_steps} batches a step"
    seeds = f"seed {args.seed}" if args.data_seed is None else f"seed {args.seed}, data seed {args.data_seed}"
    machine = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    device = f"device {parts.adapters.device.name}, precision {parts.adapters.precision.name}"
    command = _without_folders(command_of_process(sys.orig_argv, os.environ))
    facts = [
        f"command: `{command}`" if command else "",
        "arguments: `training_args.json`",
        f"randomness: {seeds}, {steps}" + (f", the order of {parts.rules.name}" if parts.rules.name else ""),
        _order_of(parts),
        f"environment: {machine}, {device}, and the versions below",
    ]
    return [fact for fact in facts if fact]


def _order_of(parts: TrainerParts) -> str:
    """Return a digest of the order in which the first epoch reads the training data; "" if hexloop does not choose it.

    The same digest means the same samples in the same steps, if the data and the batch size are the same.
    """
    data = parts.train_dataset
    order = None if data is None else parts.adapters.framework.order_of(parts, data)
    if order is None:
        return ""
    samples = min(len(order), MOST_SAMPLES)
    indices = array("q", order.block(0, samples))
    if sys.byteorder == "big":
        indices.byteswap()
    digest = hashlib.blake2b(indices.tobytes(), digest_size=16).hexdigest()
    part = "" if samples == len(order) else f", of which the first {samples:,} are in the digest"
    return f"order of the first epoch: `blake2b:{digest}` ({len(order):,} samples{part})"


def _without_folders(command: str) -> str:
    """Return a command with the names of files alone where it has absolute paths, which tell who ran it where."""
    try:
        words = shlex.split(command)
    except ValueError:  # it was cut
        return ""
    return " ".join(shlex.quote(_last_name(word)) for word in words).replace("`", "'")


def _last_name(word: str) -> str:
    option, equals, value = word.partition("=")
    if equals and os.path.isabs(value):
        return f"{option}={os.path.basename(value)}"
    return os.path.basename(word) if os.path.isabs(word) else word


# What the journal records of the machine, the code and the sizes

MOST_PACKAGES = 1_000
"""How many packages are recorded."""

LONGEST_FACT = 200
"""Characters of a recorded text."""

COLLECTED = 7.0
"""Seconds for which the end of a run waits for what is being collected, as git may be slow in a large repository."""


def note_information(parts: TrainerParts, cleanups: ExitStack) -> Observer:
    """Return the event handlers that record on which machine, from which code and with which sizes a run is trained.

    It is recorded in the journal. What takes time is collected in a thread, and noted once it is known. cleanups: gets
    what waits for it.
    """
    args, adapters = parts.args, parts.adapters
    if not keeps_records(args) or args.process_index != 0:
        return {}
    known: dict[str, Fact] = {"model": _model_facts(parts), "data": _data_facts(parts)}
    collect = partial(_collect, adapters.journal, known, adapters.device.name, adapters.mesh.size)

    def began(_event: TrainBegan) -> None:
        thread = threading.Thread(target=collect, name="hexloop notes the machine", daemon=True)
        thread.start()
        cleanups.callback(thread.join, COLLECTED)

    return {TrainBegan: began}


def _collect(journal: Journal, known: Mapping[str, Fact], device: str, ranks: int) -> None:
    with suppress(Exception):  # facts that are not known do not stop a run
        facts: dict[str, Fact] = {"host": {**_host_facts(), "device": device, "devices": ranks}, **known}
        facts["packages"] = installed_packages()
        state = state_of_repository(script_folder())
        if state is not None:
            facts["git"] = {"commit": state.commit, "branch": state.branch, "changed_files": state.changed_files}
        journal.note("information", **facts)


def _host_facts() -> dict[str, Fact]:
    import psutil

    return {
        "name": platform.node()[:LONGEST_FACT],
        "system": _system()[:LONGEST_FACT],
        "python": platform.python_version(),
        "processor": _processor()[:LONGEST_FACT],
        "cpus": os.cpu_count(),
        "memory": psutil.virtual_memory().total,
    }


def _system() -> str:
    """Return the name and release of the system, without the program that `platform.platform` runs."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def _processor() -> str:
    """Return the name of the processor; on Linux, where `platform` does not know it, as the kernel has it."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in islice(lines, 100):
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor()


def script_folder() -> str:
    """Return the folder of the program's main script; the working folder if it has none, as in a notebook."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    inside = script and not any(part in ("site-packages", "dist-packages", "bin") for part in Path(script).parts)
    return os.path.dirname(os.path.abspath(script)) if script and inside else os.getcwd()


def installed_packages() -> dict[str, Fact]:
    """Return the versions of the installed distributions by name, from the names of their folders alone."""
    found: dict[str, Fact] = {}
    for place in sys.path:
        with suppress(OSError), os.scandir(place or ".") as entries:
            for entry in entries:
                stem, _, ending = entry.name.rpartition(".")
                name, _, version = stem.partition("-")
                if ending == "dist-info" and version:
                    found.setdefault(name.replace("_", "-").lower()[:LONGEST_FACT], version[:LONGEST_FACT])
    return dict(islice(sorted(found.items()), MOST_PACKAGES))


def _model_facts(parts: TrainerParts) -> dict[str, Fact]:
    framework = parts.adapters.framework
    parameters, trained = framework.parameter_counts(parts)
    return {
        "name": type(parts.unwrapped_model).__name__[:LONGEST_FACT],
        "parameters": parameters,
        "trainable_parameters": trained,
        "bytes": framework.parameter_bytes(parts),
    }


def _data_facts(parts: TrainerParts) -> dict[str, Fact]:
    evaluated = parts.eval_dataset
    several = list(evaluated.values()) if isinstance(evaluated, dict) else [evaluated]
    counts = [_length_of(each) for each in several]
    known = [each for each in counts if each is not None]
    return {
        "training_samples": _length_of(parts.train_dataset),
        "evaluation_samples": sum(known) if len(known) == len(counts) else None,
    }


def _length_of(data: Any) -> int | None:
    """Return the number of samples of a data set; None if it has none, or does not know it."""
    try:
        return len(data)
    except Exception:  # a class of the user's
        return None
