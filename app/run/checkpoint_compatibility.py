"""Whether a checkpoint fits a run: the differences, and how accepted ones are handled."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from attrs import evolve

from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.saved_setup import check_setup
from hexloop.app.assembly.sharing import global_batch_size
from hexloop.app.assembly.storage import as_location, split_location, storage_for
from hexloop.app.callbacks import wrong_states
from hexloop.domain.checkpoints.selection import newest_first, publish_staged, readable_manifests
from hexloop.domain.errors import StorageError
from hexloop.domain.run import Run
from hexloop.domain.state import RunState
from hexloop.ports.state import Part
from hexloop.ports.storage import Storage

AUTO = "auto"
"""Resume if there is a checkpoint, and start a new run otherwise."""


def likely_checkpoint(own: Storage, resume_from: str | bool) -> tuple[Storage, str | None]:
    """Return the storage and the name of the checkpoint that `resume_from` most likely means; None if there is none.

    own: the run's storage. Nothing is verified: if the newest turns out to be damaged, the run resumes from another.
    """
    if resume_from in (True, AUTO):
        with suppress(StorageError):
            publish_staged(own)
        return own, next(newest_first(readable_manifests(own)), None)
    return named_checkpoint(own, str(resume_from))


def named_checkpoint(own: Storage, folder: str) -> tuple[Storage, str]:
    """Return the storage and the name of the checkpoint at a path or URL, on the run's own storage or any other."""
    capabilities = own.capabilities
    if _is_name(own, folder):
        return own, folder
    parent, name = split_location(folder)
    is_own = parent == as_location(capabilities.local_folder or capabilities.location)
    return own if is_own else storage_for(parent, signatures=capabilities.signatures), name


def absolute_name(own: Storage, folder: str) -> str:
    """Return a checkpoint's path made absolute, or its URL; the name of one in a remote storage as it is."""
    return folder if _is_name(own, folder) else as_location(folder)


def _is_name(own: Storage, folder: str) -> bool:
    return own.capabilities.local_folder is None and os.sep not in folder


# Differences between a run and its checkpoint

MAY_CHANGE = frozenset(
    {"params", "param_names", "name", "lr", "initial_lr", "max_lr", "min_lr"}
    | {"foreach", "fused", "capturable", "differentiable"}
)
"""Options of a parameter group that the schedule sets, or that do not change the results."""


MOVES = ("batch_size", "data_length")
"""The differences that lead to another sample in transformers, which counts steps."""


class RunSetup:
    """Implements `hexloop.adapters.contents.checkpoint.Setup`.

    It is made before the first step, because a schedule may change the optimizer's options during the run.
    rejoin: gives the optimizer the groups that joined before a checkpoint.
    """

    def __init__(
        self,
        parts: TrainerParts,
        run: Run[Any, Any],
        asked_accumulation: int,
        rejoin: Callable[[RunState], None] = lambda _: None,
    ) -> None:
        self._parts, self._rejoin = parts, rejoin
        self._asked_accumulation = asked_accumulation
        self._run = run
        found = ("batch_size",) if parts.args.auto_find_batch_size else ()
        self._accepted = frozenset((*parts.args.resume_despite, *found))
        self._weights = parts.adapters.framework.weights(parts.unwrapped_model)
        self.model = self._weights.state(parts)
        self._base = self._weights.base(parts)
        self._document = self._description()

    def document(self) -> Mapping[str, Any]:
        """Return model, precision, optimizer with its groups' options, samples of an epoch and of an optimizer step.

        Of adapters also their base, for whose digest this waits.
        """
        return self._document if self._base is None else {**self._document, "base": dict(self._base.document())}

    def check(self, saved: Mapping[str, Any], where: str) -> None:
        """Raise CheckpointError if that is not the document of a run."""
        check_setup(saved, where)

    def prepare(self, state: RunState) -> None:
        """Give the optimizer the groups that joined it before the checkpoint."""
        self._rejoin(state)

    def differences(self, saved: Mapping[str, Any], state: RunState, weights: Sequence[Part]) -> Iterator[str]:
        """Yield every difference between the run and the checkpoint's that is not accepted by name."""
        tensors = self.model.differences(weights, types="precision" not in self._accepted)
        if tensors:
            kind = f", a {saved['model']}," if "model" in saved else ""
            different = "; ".join(tensors)
            yield f"its model{kind} differs from this run's: {different}. Resume with the model of the checkpoint."
        if "imported_from" not in saved and saved.get("reproduce") != self._document["reproduce"]:
            then, now = saved.get("reproduce"), self._document["reproduce"]
            yield (
                f"it was written with reproduce={then!r}, and this run has reproduce={now!r}, so that its samples come "
                f"in another order. Resume with reproduce={then!r}."
            )
        yield from self._beyond_the_data(saved, state)
        yield from wrong_states([*self._parts.callback_handler.callbacks, self._parts.control], state.callbacks)
        for name, difference in self._named_differences(saved, state):
            if name not in self._accepted and not self._moves(name):
                yield (
                    f"{difference}. Resume with the settings of the checkpoint, or accept the difference with "
                    f"resume_despite=[{name!r}]."
                )

    def _beyond_the_data(self, saved: Mapping[str, Any], state: RunState) -> Iterator[str]:
        """Yield a position in the epoch that no reading of the same data leads to."""
        samples, batches = self._document["samples_per_epoch"], self._run.plan.batches_per_epoch
        if samples is None or self._differs(saved, "samples_per_epoch"):
            return
        size = max(self._document["batch_size"], saved.get("batch_size") or 0, state.global_batch_size)
        most = max(samples, (batches or 0) * size) + size  # batches that are not full count as whole ones
        if state.position > most:
            now = _count(samples)
            yield f"position in its run state is {state.position}, and the data have {now} in an epoch."

    def not_loaded(self, saved: Mapping[str, Any]) -> Collection[str]:
        """Return what to leave as it is: a different optimizer, the loss scale of another precision, imported data."""
        not_loaded = set()
        if self._other_optimizer(saved):
            not_loaded.add("optimizer")
            if self._parts.args.should_log:
                warnings.warn(
                    "The optimizer starts without moments, because the checkpoint's optimizer differs.", stacklevel=2
                )
        if self._differs(saved, "precision"):
            not_loaded.add("scaler")
        if "imported_from" in saved or self._moved_by(saved, saved.get("global_batch_size")):
            not_loaded.add("data")
        return not_loaded.union(*(components for _, components in self._parts.hooks.loads_state))

    def adapt(self, saved: Mapping[str, Any], state: RunState) -> None:
        """Continue at the same sample if the batch size differs, or where transformers does if that is in force."""
        own = self._document["global_batch_size"]
        if moved_by := self._moved_by(saved, state.global_batch_size):
            self._move(state, moved_by, "; ".join(text for _, text in self._named_differences(saved, state)))
        elif state.global_batch_size != own:
            state.global_batch_size = own
            self._count_batches(saved, state)
            self._stretch_plan(state)
        elif self._differs(saved, "batch_size"):
            self._count_batches(saved, state)  # the same step size from other micro-batches

    def _description(self) -> dict[str, Any]:
        parts, optimizer, mesh = self._parts, self._parts.optimizer, self._parts.adapters.mesh
        framework = parts.adapters.framework
        buckets, packing = framework.buckets(self._run.batches), framework.packing(self._run.batches)
        saved_as = self._weights.saved_as(parts.args)
        groups = zip(optimizer.param_groups, framework.group_sizes(parts), self._digests(), strict=True)
        return {
            "model": framework.own_class(parts.unwrapped_model).__qualname__,
            "precision": parts.adapters.precision.name,
            "reproduce": parts.rules.name,
            "samples_per_epoch": self._run.batches.samples_per_epoch(),
            "global_batch_size": self._run.state.global_batch_size,
            "batch_size": global_batch_size(parts.args, mesh.data, parts.train_batch_size),
            "asked_accumulation": self._asked_accumulation,
            **({} if mesh.data.size == mesh.size else {"mesh": mesh.sizes}),
            **({"weights": saved_as} if saved_as else {}),
            **({} if buckets is None else {"buckets": dict(buckets)}),
            **({} if packing is None else {"packing": packing}),
            **({"averages": averages} if (averages := _averages_in(parts)) else {}),
            "optimizer": {
                "class": type(optimizer).__qualname__,
                "by_arguments": parts.makes_optimizer or optimizer is parts.standard_optimizer,
                "groups": [_options(group, size, digest) for group, size, digest in groups],
                "without_decay": framework.names_without_decay(parts),
            },
        }

    def _digests(self) -> list[str | None]:
        """Return a digest of the names of the parameters in each group that rules made; None for others."""
        parts = self._parts
        if not parts.args.param_groups:
            return [None] * len(parts.optimizer.param_groups)
        names = {id(each): name for name, each in parts.adapters.framework.named_parameters(parts.unwrapped_model)}
        return [
            blake2b("\n".join(sorted(names.get(id(each), "") for each in group["params"])).encode()).hexdigest()[:16]
            for group in parts.optimizer.param_groups
        ]

    def _named_differences(self, saved: Mapping[str, Any], state: RunState) -> Iterator[tuple[str, str]]:
        """Yield the name under which a difference can be accepted, and its description."""
        here = self._document
        if self._differs(saved, "precision"):
            then, now = saved["precision"], here["precision"]
            yield "precision", f"it was written with the precision {then}, and this run has {now}"
        if self._base is not None and (difference := self._base.difference(saved.get("base") or {})):
            yield "base", difference
        if difference := _optimizer_difference(saved.get("optimizer"), here["optimizer"]):
            yield "optimizer", difference
        if self._differs(saved, "samples_per_epoch"):
            then, now = _count(saved["samples_per_epoch"]), _count(here["samples_per_epoch"])
            yield "data_length", f"its data had {then} in an epoch, and the data of this run has {now}"
        elif difference := _bucket_difference(saved, here) or _packing_difference(saved, here):
            yield "data_length", difference
        if difference := _averages_difference(saved, here):
            yield "averages", difference
        then, now = state.global_batch_size, here["global_batch_size"]
        if then != now:
            yield "batch_size", f"its optimizer steps had {then} samples, and those of this run have {now}"

    def _differs(self, saved: Mapping[str, Any], name: str) -> bool:
        """Return whether the checkpoint describes `name`, and differently."""
        return bool(saved.get(name, self._document[name]) != self._document[name])

    def _other_optimizer(self, saved: Mapping[str, Any]) -> bool:
        """Return whether the moments of the checkpoint's optimizer do not fit this one."""
        then, now = saved.get("optimizer"), self._document["optimizer"]
        return then is not None and (then["class"] != now["class"] or _in_groups_of(then, now) is None)

    def keep_options(self, saved: Mapping[str, Any]) -> None:
        """Give the loaded optimizer this run's options, learning rates apart."""
        then, now = saved.get("optimizer"), self._document["optimizer"]
        groups = None if then is None else _in_groups_of(then, now)
        if groups is None:
            return
        live_groups = self._parts.optimizer.param_groups[: len(groups)]  # without those that joined later
        for live, before, own in zip(live_groups, groups, now["groups"], strict=True):
            for name, value in own.items():
                if name not in ("parameters", NAMES) and before.get(name) != value:
                    live[name] = type(live[name])(value) if isinstance(live.get(name), tuple) else value

    def _moves(self, name: str) -> bool:
        """Return whether a difference that the user has not accepted by name leads to transformers' position."""
        return name in MOVES and name not in self._accepted and not self._parts.notices.refuses(name)

    def _moved_by(self, saved: Mapping[str, Any], samples: int | None) -> list[str]:
        """Return the differences that lead to transformers' position; samples: of a step of the checkpoint's run."""
        differs = {
            "batch_size": samples not in (None, self._document["global_batch_size"]),
            "data_length": self._differs(saved, "samples_per_epoch"),
        }
        return [name for name in MOVES if differs[name] and self._moves(name)]

    def _move(self, state: RunState, moved_by: Sequence[str], differences: str) -> None:
        """Continue where transformers does, after the same number of steps of this run's size, and warn of it.

        It divides the steps done by those of an epoch, which is the whole run if the data have no length. What was due
        at the boundary is not done.
        """
        plan, samples, size = self._run.plan, self._document["samples_per_epoch"], self._document["batch_size"]
        left = state.epoch, state.position
        state.epoch, steps = divmod(state.step, plan.steps_per_epoch or plan.total_steps)
        state.batches = 0 if self._parts.args.ignore_data_skip else steps * plan.accumulation
        state.position = state.batches * size if samples is None else min(state.batches * size, samples)
        state.global_batch_size = self._document["global_batch_size"]
        state.due, state.pass_complete, state.epoch_ended = [], False, False
        if self._parts.args.should_log:
            self._parts.notices.warn(
                moved_by[0],
                f"The run resumes at step {state.step} with other settings than its checkpoint: {differences}. As in "
                f"transformers, which counts steps, it continues in epoch {state.epoch} after {state.position} "
                f"samples. The checkpoint was written in epoch {left[0]} after {left[1]} samples, so samples may be "
                f"skipped or repeated; resume_despite={list(moved_by)!r} continues at the sample of the checkpoint.",
            )

    def _count_batches(self, saved: Mapping[str, Any], state: RunState) -> None:
        """Count the samples read in the current epoch in batches of this run's size."""
        plan, samples, size = self._run.plan, self._document["samples_per_epoch"], self._document["batch_size"]
        if "packing" in self._document:  # sizes are those in rows, of which each has any number of samples
            state.batches = math.ceil(state.batches * (saved.get("batch_size") or size) / size)
            return
        if plan.batches_per_epoch is None or samples is None:
            state.batches = math.ceil(state.position / size)
            return
        left = (samples - state.position) / size
        left = math.floor(left) if self._parts.args.dataloader_drop_last else math.ceil(left)
        state.batches = max(0, plan.batches_per_epoch - max(0, left))

    def _stretch_plan(self, state: RunState) -> None:
        """Count the rest in steps of this run's size, and stretch the schedule, or with `max_steps` recount epochs."""
        run, args, samples = self._run, self._parts.args, self._document["samples_per_epoch"]
        plan = run.plan
        if samples is None or plan.batches_per_epoch is None or plan.steps_per_epoch is None:
            return
        passes = plan.epoch_at(state.epoch, state.batches)
        if args.max_steps > 0:
            passes += (plan.total_steps - state.step) / plan.steps_per_epoch
            run.plan = evolve(plan, epochs=math.ceil(passes - 1e-9))
            return
        passes_left = max(0.0, args.num_train_epochs - passes)
        total = state.step + math.ceil(passes_left * plan.steps_per_epoch - 1e-9)
        run.plan = evolve(plan, total_steps=total)
        if self._parts.makes_scheduler:
            framework = self._parts.adapters.framework
            framework.stretch(run.scheduler, args, total, self._parts.optimizer)


NAMES = "names_digest"
"""The entry of a group that stands for the names of its parameters."""


def _options(group: Mapping[str, Any], size: int, digest: str | None) -> dict[str, Any]:
    """Return the options of a group that a resumed run must share, as JSON, and its number of parameters.

    digest: of the names of its parameters; None if their number is all that is compared.
    """
    options = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in group.items()
        if name not in MAY_CHANGE and _is_plain(value)
    }
    return {**options, "parameters": size, **({} if digest is None else {NAMES: digest})}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _bucket_difference(saved: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Return how the padding of batches differs that both plan from the lengths of their data; None if it does not."""
    then, now = (document.get("buckets") or {"most": None, "data": None} for document in (saved, here))
    if "imported_from" in saved or then == now:
        return None
    if then["most"] != now["most"]:
        return f"it was written with compile_buckets={then['most']}, and this run has {now['most']}"
    return "the samples of its data had other lengths than those of this run, so that batches are padded differently"


def _packing_difference(saved: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Return how the documents of rows differ in the run and the checkpoint's; None if they are the same."""
    then, now = saved.get("packing"), here.get("packing")
    if "imported_from" in saved or then == now:
        return None
    return (
        f"its batches were planned by {then or 'numbers of samples'}, and those of this run by "
        f"{now or 'numbers of samples'}, so that other documents share a batch"
    )


def _averages_in(parts: TrainerParts) -> str:
    """Return which averages of weights a run has and where they are saved; "" for none, or those of its optimizer."""
    averages = parts.averages.weights
    return f"{averages.kind}, {'beside' if averages.beside else 'instead'}" if averages.kind == "ema" else ""


def _averages_difference(saved: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Return how the averages of the run and the checkpoint's differ; None if they do not."""
    then, now = saved.get("averages"), here.get("averages")
    if "imported_from" in saved or then == now:
        return None
    written, has = (_settings_of(each) for each in (then, now))
    return f"it was written with {written}, and this run has {has}"


def _settings_of(averages: str | None) -> str:
    return "no ema_decay" if averages is None else f"ema_decay and ema_weights={averages.partition(', ')[2]!r}"


def _optimizer_difference(then: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str | None:
    """Return how two optimizers differ; None if they do not."""
    if then is None:
        return None
    if then["class"] != now["class"]:
        return f"its optimizer is {then['class']}, and that of this run is {now['class']}"
    groups = _in_groups_of(then, now)
    if groups is None:
        return f"its optimizer has groups of {_sizes(then)} parameters, and that of this run of {_sizes(now)}"
    options = _differing(groups, now["groups"])
    return f"the options of its optimizer differ: {'; '.join(options)}" if options else None


def _in_groups_of(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """Return the groups of a saved optimizer as this run groups the parameters; None if the numbers do not match.

    Earlier versions made one group where nothing is decayed, and some engines remove empty groups. An empty group has
    the options of this run.
    """
    saved = [group for group in then["groups"] if group["parameters"]]
    sizes = [size for size in _sizes(now) if size]
    if len(saved) == 1 and saved[0]["parameters"] == sum(sizes):
        saved = [{**saved[0], "parameters": size} for size in sizes]
    elif len(sizes) == 1 and sum(group["parameters"] for group in saved) == sizes[0]:
        options = [{**group, "parameters": sizes[0]} for group in saved]
        saved = options[:1] if all(each == options[0] for each in options) else saved
    if [group["parameters"] for group in saved] != sizes:
        return None
    rest = iter(saved)
    return [next(rest) if group["parameters"] else group for group in now["groups"]]


def _sizes(optimizer: Mapping[str, Any]) -> list[int]:
    return [group["parameters"] for group in optimizer["groups"]]


def _differing(then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"group {number} has other parameters"
        if name == NAMES
        else f"{name} of group {number} was {before.get(name, 'not set')} and is {after.get(name, 'not set')}"
        for number, (before, after) in enumerate(zip(then, now, strict=True))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _count(samples: int | None) -> str:
    return "an unknown number of samples" if samples is None else f"{samples} samples"
