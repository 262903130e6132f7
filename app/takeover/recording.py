"""One of the two processes of a check: runs the program with one library and records what training computes.

    python -m hexloop.app.takeover.recording FOLDER LIBRARY (-m MODULE | SCRIPT) ARGUMENT ...

The records are lines of JSON in FOLDER/<library>.jsonl. Output folders are redirected below FOLDER/<library>, values
are logged at every step, and trackers and the Hub are off. A write to any other place ends the program before it
happens.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import wraps
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import xxhash

from hexloop.app.takeover.replacing import call_after, call_before, takeover
from hexloop.app.takeover.scripts import Program

REFUSED = 2
TRANSFORMERS, HEXLOOP = "transformers", "hexloop"
TEMPORARY = "temporary"
"""The folder, inside that of the check, for the program's temporary files."""

RECORDED = "_is_recorded_by_hexloop"
"""The attribute of a Trainer that is recorded already."""

CACHES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "HF_MODULES_CACHE",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "XDG_CACHE_HOME",
    "MPLCONFIGDIR",
    "PYTHONPYCACHEPREFIX",
)
"""Environment variables that name folders of caches."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.mkdir": (0,), "os.remove": (0,), "os.rmdir": (0,), "os.rename": (0, 1), "shutil.rmtree": (0,)}
"""The events of Python's auditing that change a folder, and which of their values are paths."""


class WritesElsewhere(SystemExit):
    """Ends a program that writes outside of its output folder; no `except Exception` handles it."""


class Recorder:
    """Writes records to a file that stays open, also in processes that the program forks."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, **values: object) -> None:
        """Append one record."""
        os.write(self._file, json.dumps({"kind": kind, **values}).encode() + b"\n")


class TrainingRecord:
    """Records what a Trainer logs and predicts, and its final weights; a callback together with a library's base class.

    number: that of the Trainer in the program. model: returns the model that it trains.
    """

    def __init__(self, recorder: Recorder, number: int, model: Callable[[], Any]) -> None:
        self._recorder, self._number, self._model = recorder, number, model
        self._not_compared: tuple[str, ...] = ()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the parameter groups. The mean loss of a run that resumes counts the steps before in hexloop only."""
        self._not_compared = ("train_loss",) if state.global_step else ()
        self._record("groups", state, values=_groups_of(kwargs.get("optimizer")))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record logged values."""
        values = {name: value for name, value in _numbers(logs).items() if name not in self._not_compared}
        self._record("log", state, values=values)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Record the metrics of a prediction."""
        self._record("prediction", state, values=_numbers(metrics))

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Record the digests of all weights. Libraries that call callbacks themselves may pass a model of their own."""
        trained = model if hasattr(model, "state_dict") else self._model()
        digests = {name: _digest(tensor) for name, tensor in trained.state_dict().items()}
        self._record("weights", state, values={name: digest for name, digest in digests.items() if digest})

    def _record(self, kind: str, state: Any, values: Any) -> None:
        if state.is_world_process_zero:
            self._recorder.write(kind, trainer=self._number, step=state.global_step, values=values)


def _numbers(values: Any) -> dict[str, float]:
    """Return the numbers among logged values, as plain floats."""
    found = {}
    for name, value in (values or {}).items():
        if isinstance(value, int | float) or hasattr(value, "item"):
            with suppress(TypeError, ValueError, RuntimeError):  # of arrays with several elements
                found[str(name)] = float(value)
    return found


def _groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return the number of tensors, the peak rate and the weight decay of each parameter group."""
    return [
        {
            "tensors": len(group["params"]),
            **_numbers({"learning_rate": group.get("initial_lr", group.get("lr")), **_named(group, "weight_decay")}),
        }
        for group in getattr(optimizer, "param_groups", None) or ()
    ]


def _named(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _digest(tensor: Any) -> str | None:
    """Return type, shape and digest of a tensor's bytes; None for what is not a tensor with bytes on this machine."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        return None
    try:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return f"{tensor.dtype} {list(tensor.shape)} {xxhash.xxh3_64_hexdigest(data)}"


class OutputFolders:
    """Redirects each output folder that a program names to one below `root`."""

    def __init__(self, root: Path) -> None:
        self._root, self._redirected = str(root), dict[str, str]()

    def redirect(self, folder: str | os.PathLike[str] | None) -> str:
        """Return the folder for `folder`, the same one each time."""
        named = os.path.abspath(os.fspath(folder or "trainer_output"))
        if Path(named).is_relative_to(self._root):
            return named
        default = os.path.join(self._root, f"{len(self._redirected) + 1}-{os.path.basename(named)}")
        return self._redirected.setdefault(named, default)

    def in_arguments(self, arguments: Iterable[str]) -> tuple[str, ...]:
        """Return a command line with its `--output_dir` redirected, for programs that read it themselves."""
        redirected, expected = [], False
        for argument in arguments:
            option, equals, value = argument.partition("=")
            if expected:
                redirected.append(self.redirect(argument))
            elif option in ("--output_dir", "--output-dir") and equals:
                redirected.append(f"{option}={self.redirect(value)}")
            else:
                redirected.append(argument)
            expected = not expected and argument in ("--output_dir", "--output-dir")
        return tuple(redirected)


def watch_writes(allowed: Callable[[str], bool], recorder: Recorder, script: str) -> None:
    """End the program, with a record, before it writes to a path that is not allowed. Cannot be undone."""

    def refuse(path: object, folder: object = None) -> None:
        if not isinstance(path, str | bytes | os.PathLike) or folder not in (None, -1):
            return  # an open file, or a name in an open folder
        absolute = os.path.abspath(os.fsdecode(path))
        if allowed(absolute) or allowed(os.path.realpath(absolute)):
            return
        recorder.write("elsewhere", path=absolute, line=_line_of(script))
        raise WritesElsewhere(REFUSED)

    opening = threading.local()
    open_file = os.open

    @wraps(open_file)
    def open_in(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        opening.folder = dir_fd  # auditing passes it for all events but this
        try:
            return open_file(path, flags, mode, dir_fd=dir_fd)
        finally:
            opening.folder = None

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = values
            if isinstance(flags, int) and flags & _WRITING:
                refuse(path, getattr(opening, "folder", None))
        elif event in _CHANGES and not (event == "os.mkdir" and os.path.isdir(values[0])):
            for each in _CHANGES[event]:
                refuse(values[each], values[-1])

    sys.addaudithook(hook)
    if open_file in os.supports_dir_fd:
        os.supports_dir_fd.add(open_in)
    _replace(os, "open", open_in)
    import safetensors.torch
    import torch

    for module, function in ((torch, "save"), (safetensors.torch, "save_file")):  # native code writes their files
        _replace(module, function, _audited(getattr(module, function)))


def _audited(write: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that writes a value to a path, with Python's auditing event before it does."""

    @wraps(write)
    def audit_and_write(value: Any, path: Any, *values: Any, **named: Any) -> Any:
        sys.audit("open", path, "wb", os.O_WRONLY | os.O_CREAT)
        return write(value, path, *values, **named)

    return audit_and_write


def is_cache_or_device(script: str, folder: Path) -> Callable[[str], bool]:
    """Return the test for paths that any program may write to: the check's folder, caches, temporary files, devices."""
    roots = [folder, *map(Path, ("/dev", "/proc", "/sys"))]
    roots += [Path(os.path.abspath(os.environ[name])) for name in CACHES if os.environ.get(name)]
    shared = folder.parent  # the machine's temporary folder, unless the program itself is there
    if not any(Path(each).resolve().is_relative_to(shared.resolve()) for each in (script, os.getcwd())):
        roots.append(shared)
    home = Path.home()

    def allowed(path: str) -> bool:
        at = Path(path)
        if at.is_relative_to(home) and at != home and at.relative_to(home).parts[0].startswith("."):
            return True  # settings and caches of libraries
        return "__pycache__" in at.parts or any(at.is_relative_to(root) for root in roots)

    return allowed


def _line_of(script: str) -> int | None:
    """Return the line of the script that is being executed."""
    frame = sys._getframe()
    while frame is not None:
        if os.path.abspath(frame.f_code.co_filename) == os.path.abspath(script):
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return None


def record(library: str, program: Program, recorder: Recorder, folders: OutputFolders) -> int:
    """Run the program with a library, recording what its Trainers compute, and return its exit code."""
    classes = import_module(library)
    numbers = count(1)

    def adjust(arguments: Any) -> None:
        arguments.output_dir = folders.redirect(arguments.output_dir)
        arguments.logging_strategy, arguments.logging_steps = "steps", 1
        arguments.report_to, arguments.push_to_hub = "none", False

    def listen(trainer: Any) -> None:
        if RECORDED in vars(trainer):
            return
        vars(trainer)[RECORDED] = True
        callback = type("Recording", (TrainingRecord, classes.TrainerCallback), {})
        trainer.add_callback(callback(recorder, next(numbers), lambda: trainer.model))

    recorder.write("start")
    with ExitStack() as undo:
        if library == HEXLOOP:
            undo.enter_context(takeover(reproduce=TRANSFORMERS))
        undo.callback(call_before(classes.TrainingArguments, "__post_init__", adjust))
        for method in ("__init__", "add_callback"):  # a subclass may replace the constructor, as trl's PPOTrainer does
            undo.callback(call_after(classes.Trainer, method, listen))
        undo.callback(_replace(classes.Trainer, "push_to_hub", lambda *_, **__: None))
        return program.run()


def _replace(owner: Any, name: str, value: object) -> Callable[[], object]:
    """Set an attribute; return what undoes it."""
    inherited, before = name not in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    return lambda: delattr(owner, name) if inherited else setattr(owner, name, before)


def main(argv: Sequence[str]) -> int:
    """Record the program of the command line `argv`, and return its exit code."""
    folder, library, *command = argv
    is_module = command[0] == "-m"
    name, *arguments = command[is_module:]
    folders = OutputFolders(Path(folder, library))
    recorder = Recorder(Path(folder, f"{library}.jsonl"))
    program = Program(name, folders.in_arguments(arguments), is_module)
    watch_writes(is_cache_or_device(name, Path(folder)), recorder, name)
    code = record(library, program, recorder, folders)
    if code == 0:
        _leave_group()
    return code


def _leave_group() -> None:
    """Leave the process group, which programs leave open: torch sometimes aborts a process that exits with one."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
