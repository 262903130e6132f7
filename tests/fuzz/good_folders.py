"""Good folders that are changed: checkpoints of several kinds of run, one of transformers, and a journal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import traceback
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import hexloop
from hexloop.app.command_line import main
from hexloop.domain.run_folder import JOURNAL
from tests.end_to_end.small.documents import split
from tests.end_to_end.small.models import Stream, net, rows
from tests.end_to_end.small.trainers import small_trainer
from tests.fuzz.targets import removed_at_exit

STEP = 2
"""The step of the checkpoints that are made here."""

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
    "stream": {"lr_scheduler_type": "greedy", "eval_strategy": "steps", "eval_steps": 1},
    "split": {},
}
"""The arguments of the runs with good checkpoints; "split" has its documents in a file each, as hexloop 0.1 did."""

SHARDED = ("ddp", "fsdp2")
"""Checkpoints of several processes, which only the commands read."""

REFERENCE = Path(__file__).parents[1] / "reference" / "checkpoints_of_0_1_0"


def trainer_of(output: Path, kind: str, **given: Any) -> Any:
    """Return a Trainer of the run of a kind, with a few further arguments."""
    parts: dict[str, Any] = {"model": net(0.1), "eval_dataset": rows(4, seed=1)}
    if kind == "stream":
        parts["train_dataset"] = Stream(4000)
    if kind == "sgd":
        parts["callbacks"] = [hexloop.EarlyStoppingCallback(early_stopping_patience=1000)]
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


def checkpoint_of(kind: str) -> Path:
    """Return the folder of the good checkpoint of a kind."""
    return next((good() / kind).glob("checkpoint-*"))


def _make_good(place: Path) -> None:
    made = {kind: place / kind / f"checkpoint-{STEP}" for kind in KINDS}
    for kind, checkpoint in made.items():
        if kind == "split":
            shutil.copytree(made["adamw"], checkpoint)
            split(checkpoint)
        else:
            arguments = {"max_steps": STEP, "save_strategy": "steps", "save_steps": STEP, "journal": "steps"}
            trainer_of(place / kind, kind, **arguments).train()
        trainer_of(place / "warm", kind, max_steps=STEP + 1).train(resume_from_checkpoint=str(checkpoint))
    shutil.rmtree(place / "warm")
    for kind in SHARDED:
        shutil.copytree(REFERENCE / kind, place / kind)
    shutil.copytree(hexloop.export_checkpoint(made["adamw"], place / "exported"), place / "foreign")
    imported = str(hexloop.import_checkpoint(place / "foreign", place / "warm"))
    for command in ("show", "verify", "consolidate"):
        main(["checkpoints", command, imported])
    main(["checkpoints", "diff", imported, str(made["adamw"])])
    main(["checkpoints", "prune", str(place / "warm"), "--keep", "1", "--dry-run"])
    main(["checkpoints", "list", str(place / "warm")])
    (place / "journals").mkdir()
    shutil.copy(place / "adamw" / JOURNAL, place / "journals")
    main(["runs", "diff", str(place / "adamw"), str(place / "journals")])
