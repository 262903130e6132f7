"""The same training with transformers' Trainer and with hexloop's, and the results to compare."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from attrs import define, field
from torch import Tensor, nn

import hexloop

BOTH: Mapping[str, Any] = {
    "train_sampling_strategy": "sequential",
    "disable_tqdm": True,
    "report_to": "none",
    "save_strategy": "no",
    "logging_steps": 1,
    "seed": 0,
    "use_cpu": True,
}
"""Arguments of every comparison; a case's own take precedence."""


EVENTS = tuple(name for name in vars(transformers.TrainerCallback) if name.startswith("on_"))
SWITCHES = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")


@define
class Outcome:
    """The result of a run.

    log: everything logged. output: what `train` returned. weights: by name, after the run. gradients: by name, at the
    first update. events: (event, step, epoch, flags) as a callback received them. keywords: the keywords of each event,
    as (name, whether it was None).
    """

    trainer: Any = None
    log: list[dict[str, float]] = field(factory=list)
    output: Any = None
    weights: dict[str, Tensor] = field(factory=dict)
    gradients: dict[str, Tensor] = field(factory=dict)
    events: list[tuple[Any, ...]] = field(factory=list)
    keywords: list[tuple[str, tuple[tuple[str, bool], ...]]] = field(factory=list)

    def series(self, name: str) -> list[float]:
        """Return what was logged under a name, in order."""
        return [entry[name] for entry in self.log if name in entry]


def recorder(library: Any, outcome: Outcome) -> Any:
    """Return a callback of that library that records its events."""

    def listener(event: str) -> Callable[..., None]:
        def listen(self: Any, args: Any, state: Any, control: Any, **keywords: Any) -> None:
            switches = tuple(getattr(control, switch) for switch in SWITCHES)
            outcome.events.append((event, state.global_step, state.epoch, switches))
            outcome.keywords.append((event, tuple(sorted((name, each is None) for name, each in keywords.items()))))
            if event == "on_pre_optimizer_step" and state.global_step == 0:
                found = keywords["model"].named_parameters()
                outcome.gradients = {name: each.grad.clone() for name, each in found if each.grad is not None}

        return listen

    return type("Recorder", (library.TrainerCallback,), {event: listener(event) for event in EVENTS})()


def run(library: Any, folder: Path, model: nn.Module, arguments: Mapping[str, Any], **parts: Any) -> Outcome:
    """Train a copy of `model`.

    parts: further arguments of the Trainer. `callbacks` is called with the library and returns those to add; `derive`
    is called with its Trainer class and returns the class to use; `resume_from` names the checkpoint in `folder` to
    resume from; `afterwards` is called with the Trainer after the run.
    """
    torch.set_num_threads(1)
    outcome = Outcome()
    further = parts.pop("callbacks", lambda _library: [])(library)
    resume_from, afterwards = parts.pop("resume_from", None), parts.pop("afterwards", lambda _trainer: None)
    outcome.trainer = parts.pop("derive", lambda trainer: trainer)(library.Trainer)(
        model=deepcopy(model),
        args=library.TrainingArguments(output_dir=str(folder), **{**BOTH, **arguments}),
        callbacks=[*further, recorder(library, outcome)],
        **parts,
    )
    outcome.trainer.remove_callback(library.PrinterCallback)
    outcome.output = outcome.trainer.train(resume_from and str(folder / resume_from))
    afterwards(outcome.trainer)
    outcome.log = outcome.trainer.state.log_history
    outcome.weights = {name: each.detach().clone() for name, each in outcome.trainer.model.named_parameters()}
    return outcome


def run_hexloop(folder: Path, model: nn.Module, arguments: Mapping[str, Any], **parts: Any) -> Outcome:
    """Train with hexloop, with the loss weighting of the arguments."""
    return run(hexloop, folder / "hexloop", model, arguments, **parts)


def run_reference(folder: Path, model: nn.Module, arguments: Mapping[str, Any], **parts: Any) -> Outcome:
    """Train with transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of transformers itself
        return run(transformers, folder / "reference", model, arguments, **parts)


def run_both(folder: Path, model: nn.Module, arguments: Mapping[str, Any], **parts: Any) -> tuple[Outcome, Outcome]:
    """Train with hexloop, with transformers' loss weighting, and with transformers."""
    ours = run_hexloop(folder, model, {"loss_weighting": "reference", **arguments}, **parts)
    return ours, run_reference(folder, model, arguments, **parts)
