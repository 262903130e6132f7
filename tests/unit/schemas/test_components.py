"""The documents of all components of a checkpoint, with any value in any field: loaded, or refused by name."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader, Dataset

from hexloop.adapters.batches import StatefulBatches
from hexloop.adapters.batches.torch.batches import LoaderBatches
from hexloop.adapters.batches.torch.external import ExternalBatches
from hexloop.adapters.batches.torch.loader import OrderedLoader
from hexloop.adapters.batches.torch.order import OrderedBatchSampler
from hexloop.adapters.batches.torch.replay import ReplayedBatches
from hexloop.adapters.contents import documents
from hexloop.adapters.contents.checkpoint import AnySetup, CheckpointContents
from hexloop.adapters.device.simulated import SimulatedDevice
from hexloop.adapters.device.torch import CpuDevice
from hexloop.adapters.losses import PlainLosses
from hexloop.adapters.losses.torch import RunningLoss, TorchLosses
from hexloop.adapters.precision.autocast import Fp16Precision
from hexloop.adapters.precision.simulated_scaling import SimulatedScaling
from hexloop.adapters.scheduler.torch.run_schedules import GreedyLR, LambdaScheduler, MetricScheduler, lambda_of
from hexloop.adapters.scheduler.torch.user_scheduler import TorchScheduler
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.domain.errors import CheckpointError
from hexloop.domain.evaluation import BestMetric
from hexloop.domain.order import Sequential
from hexloop.domain.schedules import build_shape
from hexloop.domain.state import RunState
from hexloop.ports.state import Exportable
from tests.contracts.keepers import Keeper
from tests.examples import examples
from tests.unit.schemas.json_values import VALUES


class Samples(Dataset[Any]):
    """Eight samples."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.tensor([float(index)])}


METRICS = {"eval_loss": 1.0}


@frozen
class Component:
    """A component with some state, and one that loads it. name: in a checkpoint. use: what a run does next with it."""

    name: str
    made: Exportable
    use: Callable[[], object]


def optimizers(kind: type[Optimizer], **options: Any) -> tuple[nn.Linear, Optimizer]:
    """Return a model of one layer with an optimizer that has taken a step."""
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), **{"lr": 0.1, **options})
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    return model, optimizer


def of_optimizer(kind: type[Optimizer], **options: Any) -> Component:
    model, optimizer = optimizers(kind, **options)
    return Component("optimizer", OptimizerState(model, optimizer), optimizer.step)


def of_schedule(make: Callable[[Optimizer], Any], ends: type[Exception] = CheckpointError) -> Component:
    """Return a schedule of the user's after a step. ends: what it raises after its last step."""
    optimizer = optimizers(SGD)[1]
    scheduler = TorchScheduler(make(optimizer), optimizer, BestMetric("loss", required=True))

    def use() -> None:
        optimizer.step()
        scheduler.observe(METRICS)
        with suppress(ends):
            scheduler.advance(1)

    use()
    return Component("scheduler", scheduler, use)


def of_metric(make: Callable[[Optimizer], Any]) -> Component:
    scheduler = MetricScheduler(make(optimizers(SGD)[1]), BestMetric("loss", required=True))
    scheduler.observe(METRICS)
    return Component("scheduler", scheduler, lambda: scheduler.observe(METRICS))


def ahead() -> Component:
    """Return a schedule of the step that is ahead of the run."""
    shape = build_shape("linear", base_rate=0.1, warmup_steps=0, total_steps=100, options={})
    scheduler = LambdaScheduler(lambda_of(shape, optimizers(SGD)[1]))
    scheduler.start(0)
    scheduler.scheduler.optimizer.step()
    scheduler.scheduler.step()
    return Component("scheduler", scheduler, lambda: scheduler.start(2))


def of_losses(losses: Any) -> Component:
    losses.add(torch.tensor(2.5))
    return Component("losses", losses, losses.drain)


def of_batches(batches: Any) -> Component:
    """Return batches of which one was read."""
    next(batches.epoch(0, 0))
    return Component("data", batches, lambda: len(list(batches.epoch(0, 2))))


class Rows:
    """Rows with a state."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 8:
            self.at += 1
            yield self.at

    def state_dict(self) -> Any:
        return self.at

    def load_state_dict(self, state: Any) -> None:
        """Ignore the state, which is checked by its owner."""


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(Samples(), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(1), **options)


def ordered() -> LoaderBatches:
    sampler = OrderedBatchSampler(lambda _: Sequential(8), 2)
    return LoaderBatches(
        OrderedLoader(Samples(), sampler, collate_fn=torch.utils.data.default_collate), lambda batch: batch
    )


def drawn() -> float:
    return random.random() + float(np.random.random()) + float(torch.rand(()))


def of_components() -> Component:
    losses = TorchLosses()
    for number in range(3):
        losses.add_component("part", torch.tensor(float(number)))
    return of_losses(losses)


COMPONENTS: dict[str, Callable[[], Component]] = {
    "adamw": lambda: of_optimizer(AdamW),
    "fused adamw": lambda: of_optimizer(AdamW, fused=True, amsgrad=True),
    "sgd": lambda: of_optimizer(SGD, momentum=0.9),
    "scaler": lambda: Component("scaler", (made := Fp16Precision("cpu")), lambda: made.scale(torch.ones(()))),
    "simulated scaler": lambda: Component("scaler", SimulatedScaling(), bool),
    "losses": lambda: of_losses(TorchLosses()),
    "losses with components": of_components,
    "running loss": lambda: of_losses(RunningLoss("cpu", True, lambda: 1)),
    "plain losses": lambda: of_losses(PlainLosses()),
    "cpu": lambda: Component("random", CpuDevice(), drawn),
    "simulated device": lambda: Component("random", (made := SimulatedDevice()), made.draw),
    "linear schedule": ahead,
    "plateau": lambda: of_metric(lambda optimizer: ReduceLROnPlateau(optimizer, patience=0)),
    "greedy": lambda: of_metric(lambda optimizer: GreedyLR(optimizer, smooth=True, patience=0)),
    "user's plateau": lambda: of_schedule(lambda optimizer: ReduceLROnPlateau(optimizer, patience=0)),
    "user's greedy": lambda: of_schedule(GreedyLR),
    "steps": lambda: of_schedule(lambda optimizer: StepLR(optimizer, 3)),
    "milestones": lambda: of_schedule(lambda optimizer: MultiStepLR(optimizer, [3, 4])),
    "restarts": lambda: of_schedule(lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 3)),
    "one cycle": lambda: of_schedule(
        lambda each: OneCycleLR(each, 0.1, total_steps=10, cycle_momentum=False), ends=ValueError
    ),
    "sequence": lambda: of_schedule(lambda each: SequentialLR(each, [StepLR(each, 3), StepLR(each, 2)], [2])),
    "rows": lambda: of_batches(StatefulBatches(Rows(), 2)),
    "ordered": lambda: of_batches(ordered()),
    "loader": lambda: of_batches(ExternalBatches(loader(), lambda batch: batch)),
    "replayed": lambda: of_batches(ReplayedBatches(loader(), lambda batch: batch)),
}


@contextmanager
def kept_streams() -> Iterator[None]:
    """Restore the random streams on exit."""
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])


def contents_of(component: Component) -> CheckpointContents:
    model = Keeper({"a": np.zeros(1, "<f4")})
    return CheckpointContents({"model": model, component.name: component.made}, setup=AnySetup())


@cache
def saved(kind: str) -> tuple[str, MemoryStorage]:
    """Return the name of a component, and the files of a checkpoint with it."""
    with kept_streams():
        storage, component = MemoryStorage(), COMPONENTS[kind]()
        for file in contents_of(component).files(RunState()):
            storage.write(file.path, file.chunks)
    return component.name, storage


def content(storage: MemoryStorage) -> Any:
    return documents.read(storage.read("run_state.json"))


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each field; of long lists only the first and the last."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*path, key))
    elif isinstance(value, list):
        for place in sorted({0, 1, len(value) - 1} & set(range(len(value)))):
            yield from paths(value[place], (*path, place))


REMOVED: Any = object()


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a document with another value in a field, or without it."""
    document = copy.deepcopy(document)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    if value is REMOVED:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return document


@pytest.mark.filterwarnings("ignore:To resume exactly")
@pytest.mark.parametrize("kind", COMPONENTS)
@settings(deadline=None, max_examples=examples(40))
@given(source=st.data())
def test_any_value_in_any_field_is_loaded_or_refused(kind: str, source: st.DataObject) -> None:
    """A refusal is a CheckpointError that names component and file; what is loaded can be used."""
    name, storage = saved(kind)
    whole = content(storage)
    path = source.draw(st.sampled_from(list(paths(whole[name]))))
    if path == ("schema_version",):
        return
    field = (*path[:-1], "more") if source.draw(st.integers(0, 9)) == 0 and isinstance(path[-1], str) else path
    whole[name] = changed(whole[name], field, source.draw(VALUES | st.just(REMOVED) if field == path else VALUES))
    spoiled = MemoryStorage()
    for entry in storage.list(""):
        if entry.name == "run_state.json":
            continue
        spoiled.write(entry.name, storage.read(entry.name))
    spoiled.write("run_state.json", [documents.to_bytes(whole)])
    with kept_streams():
        component = COMPONENTS[kind]()
        names = [entry.name for entry in spoiled.list("")]
        try:
            contents_of(component).restore(names, spoiled.read)
        except CheckpointError as error:
            told = str(error)
        else:
            component.use()
            return
    assert len(told) < 4000
    assert name in told
    assert "run_state.json" in told or "The checkpoint has no" in told  # the only part was removed


@pytest.mark.parametrize("kind", COMPONENTS)
def test_the_unchanged_document_is_loaded(kind: str) -> None:
    """And exported again as it was."""
    _, storage = saved(kind)
    with kept_streams():
        component = COMPONENTS[kind]()
        contents_of(component).restore([entry.name for entry in storage.list("")], storage.read)
        again = MemoryStorage()
        for file in contents_of(component).files(RunState()):
            again.write(file.path, file.chunks)
    assert content(again) == content(storage)


@pytest.mark.parametrize("kind", ["milestones", "restarts"])
def test_rates_that_torch_cannot_use_are_refused(kind: str) -> None:
    """An optimizer raises RuntimeError for one that does not fit into 32 bits."""
    name, storage = saved(kind)
    whole = content(storage)
    whole[name]["scheduler"]["rates"][0] = 3.41e38
    storage.remove("run_state.json")
    storage.write("run_state.json", [documents.to_bytes(whole)])
    with pytest.raises(CheckpointError, match=r"scheduler.*rates.*3\.41e\+38 is not a finite number of 32 bits"):
        contents_of(COMPONENTS[kind]()).restore([entry.name for entry in storage.list("")], storage.read)
