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
import warnings
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import hexloop
from hexloop.app.command_line import main
from hexloop.domain.errors import ConfigurationError, HexloopError
from tests.fuzz.edits import TEXTS, Edit, apply, random_edits
from tests.fuzz.good_folders import KINDS, SHARDED, STEP, checkpoint_of, good, trainer_of
from tests.fuzz.random_cases import changed
from tests.fuzz.targets import Mutate, Target, folder
from tests.resealing import reseal

STEPS = 20
"""How many steps a run makes after the step of its checkpoint."""


# Cases


def _edits(data: bytes) -> tuple[str, list[Edit]]:
    """Return the kind of checkpoint and the edits in a case; none if it is not a list of edits."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return "adamw", []
    edits = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    kinds = [each["checkpoint"] for each in edits if str(each.get("checkpoint")) in (*KINDS, *SHARDED)]
    return (kinds or ["adamw"])[0], edits


def _option(edits: list[Edit], name: str) -> Any:
    return next((each[name] for each in edits if "checkpoint" in each and name in each), None)


def _changed_checkpoint(kinds: Sequence[str]) -> Mutate:
    """Return edits of a checkpoint of some kind: some of those of a case and a further one, or others."""

    def mutate(data: bytes, random: Random, _: list[bytes]) -> bytes:
        kind, edits = _edits(data)
        edits = _some(edits, random)
        if not edits:
            kind = random.choice(kinds)
        further = random_edits(checkpoint_of(kind), random)
        options: dict[str, Any] = random.choice([{}, {}, {}, {"auto": True}, {"note": random.choice(TEXTS)}])
        return json.dumps([{"checkpoint": kind, **options}, *edits, *further]).encode()

    return mutate


def _changed_folder(name: str) -> Mutate:
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
    with _copied(checkpoint_of(kind), checkpoint_of(kind).name, edits, sealed=True) as (checkpoint, place):
        trainer = trainer_of(place / "output", kind, max_steps=_step_in(checkpoint) + STEPS)
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
    with _copied(checkpoint_of(kind), checkpoint_of(kind).name, edits, sealed=True) as (checkpoint, place):
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
            ["diff", checkpoint, checkpoint_of(kind)],
            ["diff", checkpoint_of(kind), checkpoint, "--json"],
            ["consolidate", checkpoint, "--output", place / "consolidated"],
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
            trainer = trainer_of(place / "output", "adamw", max_steps=STEP + 3)
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
    Target("resume", resume, _changed_checkpoint([*KINDS]), 10, structured=True, first=_nothing, weight=4),
    Target(
        "commands", commands, _changed_checkpoint([*KINDS, *SHARDED]), 50, structured=True, first=_nothing, weight=4
    ),
    Target("import", foreign, _changed_folder("foreign"), 10, structured=True, first=_nothing, weight=4),
    Target("runs_diff", journals, _changed_folder("journals"), 200, structured=True, first=_nothing),
    Target("recipe", recipe, changed, 500),
)
