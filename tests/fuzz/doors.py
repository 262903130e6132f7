"""Targets of whole folders: a good one with edits, sealed again, goes through the public doors.

A case is a JSON list of edits; see `tests.fuzz.edits`. An object `{"checkpoint": name}` in it chooses the good folder,
with `"auto": true` for a run that finds its checkpoint itself, and with `"note": text` for one that was set aside.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import hexloop
from hexloop.app.command_line import main
from hexloop.domain.errors import ConfigurationError, HexloopError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import small_trainer
from tests.fuzz.edits import TEXTS, Edit, apply, random_edits
from tests.fuzz.random_cases import changed
from tests.fuzz.targets import Target, folder, removed_at_exit
from tests.resealing import reseal

STEP, STEPS = 2, 20
"""The step of the good checkpoints, and how many steps a run makes after it."""

KINDS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "sgd": {
        "optim": "sgd",
        "optim_args": "momentum=0.9",
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "eval_strategy": "steps",
        "eval_steps": 1,
        "metric_for_best_model": "loss",
    },
    "adafactor": {"optim": "adafactor", "lr_scheduler_type": "cosine"},
    "rmsprop": {"optim": "rmsprop", "lr_scheduler_type": "constant"},
}
"""The arguments of the runs with good checkpoints."""


def _trainer(output: Path, kind: str, **given: Any) -> Any:
    parts = {"model": net(0.1), "eval_dataset": rows(4, seed=1)}
    return small_trainer(output, parts=parts, **{"journal": "off", **KINDS[kind], **given})


@cache
def good() -> Path:
    """Return a folder with a checkpoint of each kind, that of transformers made from the first, and a journal.

    They are made in another process, because a process in which autograd has run cannot be forked; what that imported
    is imported here.
    """
    place = removed_at_exit(Path(tempfile.mkdtemp(prefix="fuzz-good-")))
    child = os.fork()
    if child == 0:
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                _make_good(place)
            (place / "modules.json").write_text(json.dumps(sorted(sys.modules)))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for name in json.loads((place / "modules.json").read_text()):
            if name not in sys.modules and not name.startswith("__"):
                with contextlib.suppress(Exception):
                    import_module(name)
    return place


def _make_good(place: Path) -> None:
    for kind in KINDS:
        _trainer(place / kind, kind, max_steps=STEP, save_strategy="steps", save_steps=STEP, journal="steps").train()
        _trainer(place / "warm", kind, max_steps=STEP + 1).train(resume_from_checkpoint=str(_checkpoint(place, kind)))
    shutil.rmtree(place / "warm")
    shutil.copytree(hexloop.export_checkpoint(_checkpoint(place, "adamw"), place / "exported"), place / "foreign")
    imported = hexloop.import_checkpoint(place / "foreign", place / "warm")
    for command in ("show", "verify"):
        main(["checkpoints", command, str(imported)])
    main(["checkpoints", "diff", str(imported), str(_checkpoint(place, "adamw"))])
    main(["checkpoints", "prune", str(place / "warm"), "--keep", "1", "--dry-run"])
    main(["checkpoints", "list", str(place / "warm")])
    (place / "journals").mkdir()
    shutil.copy(place / "adamw" / "journal.jsonl", place / "journals")
    main(["runs", "diff", str(place / "adamw"), str(place / "journals")])


def _checkpoint(place: Path, kind: str) -> Path:
    return place / kind / f"checkpoint-{STEP}"


# Cases


def _edits(data: bytes) -> tuple[str, list[Edit]]:
    """Return the kind of checkpoint and the edits in a case; none if it is not a list of edits."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return "adamw", []
    edits = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    kinds = [each["checkpoint"] for each in edits if str(each.get("checkpoint")) in KINDS]
    return (kinds or ["adamw"])[0], edits


def _option(edits: list[Edit], name: str) -> Any:
    return next((each[name] for each in edits if "checkpoint" in each and name in each), None)


def _changed_checkpoint(data: bytes, random: Random, _: list[bytes]) -> bytes:
    """Return edits of a checkpoint of some kind: some of those of a case and a further one, or others."""
    kind, edits = _edits(data)
    edits = _some(edits, random)
    if not edits:
        kind = random.choice(list(KINDS))
    further = random_edits(_checkpoint(good(), kind), random)
    options: dict[str, Any] = random.choice([{}, {}, {}, {"auto": True}, {"note": random.choice(TEXTS)}])
    return json.dumps([{"checkpoint": kind, **options}, *edits, *further]).encode()


def _changed_folder(name: str) -> Callable[[bytes, Random, list[bytes]], bytes]:
    def mutate(data: bytes, random: Random, _: list[bytes]) -> bytes:
        edits = _some(_edits(data)[1], random)
        return json.dumps([*edits, *random_edits(good() / name, random)]).encode()

    return mutate


def _some(edits: list[Edit], random: Random) -> list[Edit]:
    """Return none to three of the edits in a case."""
    chosen = [each for each in edits if "file" in each and random.random() < 0.7]
    return chosen[:3] if random.random() < 0.5 else []


@contextlib.contextmanager
def _copied(source: Path, name: str, edits: list[Edit], sealed: bool) -> Any:
    """Make a copy of a folder with edits, sealed again, and remove it and what is beside it after the block."""
    place = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=folder()))
    copy = place / "in" / name
    shutil.copytree(source, copy)
    try:
        apply(copy, edits, late=False if sealed else None)
        if sealed:
            with contextlib.suppress(HexloopError, OSError):
                reseal(copy)
            apply(copy, edits, late=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield copy, place
    finally:
        shutil.rmtree(place, ignore_errors=True)


# Doors


def resumed(data: bytes) -> int | None:
    """Resume from a checkpoint with the edits of a case; return the steps that were trained, None if it is refused.

    Raises AssertionError if the run does not end as it should, and whatever is not an error of hexloop.
    """
    kind, edits = _edits(data)
    with _copied(_checkpoint(good(), kind), f"checkpoint-{STEP}", edits, sealed=True) as (checkpoint, place):
        trainer = _trainer(place / "output", kind, max_steps=_step_in(checkpoint) + STEPS)
        shapes = {name: tensor.shape for name, tensor in trainer.model.state_dict().items()}
        counter = _StepCounter()
        trainer.add_callback(counter)
        named: str | bool = str(checkpoint)
        if _option(edits, "auto"):
            (place / "output").mkdir(exist_ok=True)
            checkpoint.rename(place / "output" / checkpoint.name)
            named = True
        try:
            trainer.train(resume_from_checkpoint=named)
        except HexloopError as error:
            _check(error)
            return None
        assert {name: tensor.shape for name, tensor in trainer.model.state_dict().items()} == shapes
        return counter.steps


class _StepCounter(hexloop.TrainerCallback):
    steps = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps += 1


def _step_in(checkpoint: Path) -> int:
    """Return the step that a checkpoint says it is at, or any if it does not say so."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        with open(checkpoint / "run_state.json", "rb") as file:
            step = json.loads(file.read(1 << 20))["run_state"]["step"]
        return int(step) if 0 <= step < 2**40 else STEP
    return STEP


def resume(data: bytes) -> None:
    """A resume is refused with an error of hexloop, or trains to its end."""
    resumed(data)


def _check(error: HexloopError) -> None:
    assert str(error), "an error without a message"


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _call(*words: str | Path) -> int:
    """Run a command; it must end with a documented exit code, without a traceback or control characters."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main([str(word) for word in words])
    said = output.getvalue() + errors.getvalue()
    assert "Traceback" not in said, f"{words[1]}: {said.strip().rpartition(chr(10))[2]}{_innermost(said)}"
    assert code in (0, 1, 2), (words, code)
    assert not _CONTROL.search(said), (words[1], _CONTROL.search(said))
    return code


def _innermost(said: str) -> str:
    places = re.findall(r'hexloop/(\S+)", line (\d+), in (\w+)', said)
    return " in " + ":".join(places[-1]) if places else ""


def commands(data: bytes) -> None:
    """The commands about checkpoints end with their exit codes, without a traceback or control characters."""
    kind, edits = _edits(data)
    with _copied(_checkpoint(good(), kind), f"checkpoint-{STEP}", edits, sealed=True) as (checkpoint, place):
        (checkpoint / "protected").touch()
        if (note := _option(edits, "note")) is not None:
            aside = checkpoint.parent / "damaged-1-checkpoint-1"
            aside.mkdir()
            with contextlib.suppress(OSError):
                shutil.copy(checkpoint / "manifest.json", aside)
            (aside / "damaged.txt").write_bytes(str(note).encode("utf-8", "surrogatepass"))
        for words in (
            ["list", checkpoint.parent],
            ["list", checkpoint.parent, "--json"],
            ["verify", checkpoint],
            ["verify", checkpoint.parent, "--json"],
            ["show", checkpoint],
            ["show", checkpoint, "--json"],
            ["diff", checkpoint, _checkpoint(good(), kind)],
            ["diff", _checkpoint(good(), kind), checkpoint, "--json"],
            ["export", checkpoint, "--to", place / "exported"],
            ["prune", checkpoint.parent, "--keep", "1", "--keep-best", "--leftovers"],
        ):
            _call("checkpoints", *words)


def foreign(data: bytes) -> None:
    """A checkpoint of transformers is refused, or imported; then a resume is refused, or trains."""
    _, edits = _edits(data)
    with _copied(good() / "foreign", "checkpoint-2", edits, sealed=False) as (checkpoint, place):
        try:
            imported = hexloop.import_checkpoint(checkpoint, place / "imported")
            trainer = _trainer(place / "output", "adamw", max_steps=STEP + 3)
            trainer.train(resume_from_checkpoint=str(imported))
        except HexloopError as error:
            _check(error)


def journals(data: bytes) -> None:
    """`runs diff` of a changed journal and a good one ends with its exit code."""
    _, edits = _edits(data)
    with _copied(good() / "journals", "run", edits, sealed=False) as (changed_run, _):
        _call("runs", "diff", changed_run, good() / "journals")
        _call("runs", "diff", good() / "journals", changed_run, "--json")


def recipe(data: bytes) -> None:
    """A recipe is refused with a ConfigurationError, or read."""
    from hexloop.app.recipe.recipe import read_recipe

    path = folder() / f"{os.getpid()}-recipe.yaml"
    path.write_bytes(data)
    before = list(sys.path)
    try:
        read_recipe(path)
    except ConfigurationError as error:
        _check(error)
    finally:
        sys.path[:] = before


def _nothing() -> list[bytes]:
    good()  # before processes are forked
    return [b"[]"]


DOORS = (
    Target("resume", resume, _changed_checkpoint, 10, structured=True, first=_nothing),
    Target("commands", commands, _changed_checkpoint, 50, structured=True, first=_nothing),
    Target("import", foreign, _changed_folder("foreign"), 10, structured=True, first=_nothing),
    Target("runs_diff", journals, _changed_folder("journals"), 200, structured=True, first=_nothing),
    Target("recipe", recipe, changed, 500),
)
