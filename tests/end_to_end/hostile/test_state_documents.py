"""Hostile state of loss scales, schedules and callbacks: refused with file and field, and nothing is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import MultiStepLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.utils.data import DataLoader

from hexloop import Trainer
from hexloop.domain.errors import CheckpointError
from tests.end_to_end.checkpoint_folder import copy_of
from tests.end_to_end.small.documents import document_of, replace_document
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights
from tests.resealing import reseal

Make = Callable[[torch.optim.Optimizer], Any]
Change = Callable[[dict[str, Any]], None]


def with_schedule(make: Make) -> dict[str, Any]:
    """Return the model, and an optimizer with a schedule of the user's."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "optimizers": (optimizer, make(optimizer))}


class WithLoader(Trainer):
    """A trainer whose loader is the user's."""

    def get_train_dataloader(self) -> Any:
        data: Any = rows(16)
        return DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "fp16": lambda: {"fp16": True},
    "plateau": lambda: {
        "parts": {"eval_dataset": rows(4)}, "lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps",
        "eval_steps": 1, "metric_for_best_model": "loss",
    },
    "linear": lambda: {"lr_scheduler_type": "linear"},
    "replay": lambda: {"reproduce": "transformers", "lr_scheduler_type": "constant"},
    "loader": lambda: {"parts": {"train_dataset": None}, "kind": WithLoader, "lr_scheduler_type": "constant"},
    "step": lambda: {"parts": with_schedule(lambda optimizer: StepLR(optimizer, 3))},
    "milestones": lambda: {"parts": with_schedule(lambda optimizer: MultiStepLR(optimizer, [3, 4]))},
    "sequential": lambda: {
        "parts": with_schedule(lambda each: SequentialLR(each, [StepLR(each, 3), StepLR(each, 2)], [2]))
    },
    "own plateau": lambda: {
        "parts": {"eval_dataset": rows(4), **with_schedule(ReduceLROnPlateau)}, "eval_strategy": "steps",
        "eval_steps": 1, "metric_for_best_model": "loss",
    },
}  # fmt: skip
"""Arguments of the trainers, which are made for each run."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the checkpoint of a kind of trainer after two steps."""
    made: dict[str, Path] = {}

    def checkpoint(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind.replace(" ", "_"))
            small_trainer(folder, max_steps=2, save_strategy="steps", save_steps=2, **KINDS[kind]()).train()
            made[kind] = folder / "checkpoint-2"
        return made[kind]

    return checkpoint


def of(name: str, part: str, **values: Any) -> tuple[str, Change]:
    """Change entries of a part of a document."""
    return name, lambda document: document[part].update(values)


def of_data(part: str, inner: str | None = None, **values: Any) -> tuple[str, Change]:
    """Change entries of the state of the data, or of the first of a list in it, whose dictionaries are pairs."""

    def change(document: dict[str, Any]) -> None:
        pairs = document[part]["dict"]
        if inner is not None:
            pairs = next(value for name, value in pairs if name == inner)[0]["dict"]
        pairs[:] = [[name, values.pop(name, value)] for name, value in pairs]
        pairs += [[name, value] for name, value in values.items()]

    return "data", change


def state_of_torch(**values: Any) -> tuple[str, Change]:
    return "scheduler", lambda document: document["scheduler"]["state"].update(values)


CORPUS: dict[str, tuple[str, tuple[str, Change], str]] = {
    "a loss scale of zero": ("fp16", of("scaler", "scaler", scale=0.0), "scaler.scale: 0.0 is not a finite number"),
    "a loss scale that is infinite": (
        "fp16", of("scaler", "scaler", scale={"$number": "inf"}), "scaler.scale: inf is not a finite number above 0"
    ),
    "a loss scale beyond its type": ("fp16", of("scaler", "scaler", scale=1e300), "scaler.scale: 1e+300 is not"),
    "a tracker of many bits": (
        "fp16",
        of("scaler", "scaler", _growth_tracker=2**40, growth_factor=1, growth_interval=0),
        "scaler.growth_factor: 1 is not a finite number above 1; scaler.growth_interval: 0 is not between 1 and "
        "9007199254740992; scaler._growth_tracker: 1099511627776 is not between 0 and 2147483647. It was read from "
        "run_state.json.",
    ),
    "a scaler that is a list": ("fp16", ("scaler", lambda each: each.update(scaler=[])), "scaler: [] is not a JSON"),
    "a schedule that is ahead by a text": (
        "linear", ("scheduler", lambda each: each.update(position={"ahead": "far"})), "position.ahead: 'far' is not"
    ),
    "a plateau of other kinds": (
        "plateau",
        of("scheduler", "adaptive", rates=[0.1, "x"], state={"best": [], "num_bad_epochs": -1, "more": 1}),
        "adaptive.rates[1]: 'x' is not a number; adaptive.state.best: [] is not a number; "
        "adaptive.state.num_bad_epochs: -1 is not between 0 and 9007199254740992; adaptive.state: unknown entries "
        "'more'. It was read from run_state.json.",
    ),
    "a plateau of too many rates": (
        "plateau", of("scheduler", "adaptive", rates=[0.1, 0.2, 0.3]), "3 rates, and this one 2 parameter groups"
    ),
    "a plateau with the state of a greedy schedule": (
        "plateau", of("scheduler", "adaptive", state={"initial_rates": [0.1], "reset_counter": 1}), "unknown entries"
    ),
    "a rate that is not finite": (
        "step", of("scheduler", "scheduler", rates=[{"$number": "nan"}]), "scheduler.rates[0]: nan is not a finite"
    ),
    "two rates of one group": ("step", of("scheduler", "scheduler", rates=[1, 2]), "it has 2 entries, and there are 1"),
    "a method in a state": (
        "step", state_of_torch(step=5, optimizer=1, get_lr={}), "'get_lr' is not an entry of the state of StepLR"
    ),
    "a state of other kinds": (
        "step",
        state_of_torch(step_size=0, gamma="x", last_epoch=10**30, _last_lr=[None], base_lrs=[0.1, 0.2]),
        "scheduler.state.step_size: 0 is not a number above 0; scheduler.state.gamma: 'x' is not a number; "
        "scheduler.state.base_lrs: it has 2 entries, not 1; scheduler.state.last_epoch: "
        "1000000000000000000000000000000 is not between",
    ),
    "a state that is a list": ("step", of("scheduler", "scheduler", state=[]), "scheduler.state: [] is not a JSON"),
    "a state without an entry": (
        "step", ("scheduler", lambda each: each["scheduler"]["state"].pop("gamma")), "state.gamma: it is missing"
    ),
    "milestones that are texts": (
        "milestones", state_of_torch(milestones={"a": 1}), "scheduler.state.milestones: 'a' is not a number"
    ),
    "an inner state of other kinds": (
        "sequential", ("scheduler", lambda each: each["scheduler"]["state"]["_schedulers"][1].update(gamma=[])),
        "scheduler.state._schedulers[1].gamma: [] is not a number",
    ),
    "too many inner states": (
        "sequential", ("scheduler", lambda each: each["scheduler"]["state"]["_schedulers"].append({})),
        "scheduler.state._schedulers: it has 3 entries, not 2",
    ),
    "a position of other kinds": (
        "linear",
        of_data("standing", epoch=-1, batch_size=0, counts=5, last="x", more=1),
        "standing.epoch: -1 is not between 0 and 9007199254740992; standing.batch_size: 0 is not between 1 and "
        "2147483648; standing.counts: 5 is not a list; standing.last: 'x' is not a whole number; standing: unknown "
        "entries 'more'. It was read from run_state.json.",
    ),
    "a position of several readers": (
        "linear", of_data("standing", counts=[1, 2], ended=[], last=7),
        "standing.counts, ended and states: they have 2, 0 and 1 entries, and should have one for each reader; "
        "standing.last: 7 is not the number of one of 2 readers",
    ),
    "a data state of a kind that is none": (
        "linear", ("data", lambda each: each.update(standing={"explode": 1})), "contains a 'explode'"
    ),
    "a tensor by a name that is a list": (
        "linear", ("data", lambda each: each.update(standing={"tensor": [1]})), "The checkpoint's data does not fit"
    ),
    "a pass of too many batches": (
        "replay",
        of_data("replay", "passes", read=10**9),
        "replay.passes[0].read: 1000000000 is more than the 4 batches"
    ),
    "a pass of other kinds": (
        "replay", of_data("replay", "passes", read="x", epoch=-1),
        "replay.passes[0].epoch: -1 is not between 0 and 9007199254740992; replay.passes[0].read: 'x' is not a whole",
    ),
    "no pass": ("replay", of_data("replay", passes=[]), "should have the tensors"),
    "readings without end": (
        "replay", of_data("replay", kept={"dict": [["eval", {"tuple": [[], 10**12]}]]}),
        "replay.kept['eval'][1]: 1000000000000 is not between 0 and 100000",
    ),
    "generators that are texts": (
        "replay", of_data("replay", generators=["x"]), "there are 1 states of generators of the data loader, not 0"
    ),
    "states of generators of other kinds": (
        "loader", of("data", "generators", now=5, began=["", 1]),
        "generators.began[1]: 1 is not text; generators.now: 5 is not a list",
    ),
    "a state of a generator of no bytes": (
        "loader", of("data", "generators", began=["", ""]), "random states of the data loader are invalid"
    ),
    "a position beyond the data": (
        "linear", ("run_state", lambda each: each.update(position=10**12)),
        "position in its run state is 1000000000000, and the data have 16 samples in an epoch.",
    ),
    "another mode": ("own plateau", state_of_torch(mode="sideways"), "scheduler.state.mode: 'sideways' is not 'min'"),
}  # fmt: skip


@pytest.mark.parametrize("name", CORPUS)
def test_hostile_state_is_refused(saved: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """With the document's file and the field; the weights of the run have not changed."""
    kind, (document, change), words = CORPUS[name]
    checkpoint = copy_of(saved(kind), tmp_path / "spoiled")
    trainer = small_trainer(tmp_path / "output", max_steps=3, **KINDS[kind]())
    spoil(checkpoint, document, change)
    before = weights(trainer)
    with pytest.raises(CheckpointError) as raised:
        trainer.train(resume_from_checkpoint=str(checkpoint))
    assert words in str(raised.value)
    assert any(file in str(raised.value) for file in ("run_state.json", "its run state"))
    assert same_weights(weights(trainer), before)


def spoil(checkpoint: Path, name: str, change: Change) -> None:
    """Change a document, with a matching digest in the manifest."""
    try:
        document = document_of(checkpoint, name)
    except KeyError:
        document = {"schema_version": 1}
    change(document)
    replace_document(checkpoint, name, json.dumps(document).encode())
    reseal(checkpoint)


@pytest.mark.parametrize("kind", KINDS)
def test_good_state_is_loaded(saved: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    """The run continues with the losses and learning rates of one that was not interrupted."""
    whole, resumed = (small_trainer(tmp_path / name, max_steps=6, **KINDS[kind]()) for name in ("whole", "resumed"))
    whole.train()
    resumed.train(resume_from_checkpoint=str(saved(kind)))
    names = ("loss", "learning_rate", "eval_loss")
    histories = [
        [{name: each[name] for name in names if name in each} for each in trainer.state.log_history[:-1]]
        for trainer in (whole, resumed)
    ]
    if kind != "linear":  # whose length is that of the run
        assert histories[1] == histories[0]
        assert same_weights(weights(resumed), weights(whole))
