"""Runs a script with either library, and collects its results."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from attrs import frozen
from safetensors.torch import load_file

import hexloop
from tests.end_to_end.parity.runs import Outcome, recorder
from tests.end_to_end.parity.scripts.results import Results

BOTH: dict[str, Any] = {
    "train_sampling_strategy": "sequential",
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}
"""Arguments added to those of every script: the same sample order, and no output."""


@frozen
class Observation:
    """folder: of the script's files. results: what it returned. outcome: what a callback recorded."""

    folder: Path
    results: Results
    outcome: Outcome

    def files(self) -> set[str]:
        """Return every file in the folder."""
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}

    def document(self, name: str) -> Any:
        """Return a JSON file of the folder, with paths relative to it."""
        return json.loads((self.folder / name).read_text().replace(f"{self.folder}/", ""))

    def weights(self) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
        """Return, for every folder with weights, its name and the weights as the model loads them."""
        model = self.results.trainer.model
        for path in sorted(self.folder.rglob("model.safetensors")):
            loads = isinstance(model, transformers.PreTrainedModel)
            found = type(model).from_pretrained(path.parent).state_dict() if loads else load_file(path)
            yield path.parent.relative_to(self.folder).as_posix(), found


def observe(script: str, library: Any, folder: Path, main: str = "main", **options: Any) -> Observation:
    """Run the script's function `main` with that library's Trainer, in a folder of its own."""
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    outcome = Outcome()
    run = getattr(import_module(f"tests.end_to_end.parity.scripts.{script}"), main)
    results = run(library, folder, [recorder(library, outcome)], **BOTH, **options)
    return Observation(folder, results, outcome)


def observe_both(script: str, folder: Path) -> tuple[Observation, Observation]:
    """Run it with hexloop, with transformers' loss weighting, and with transformers."""
    ours = observe(script, hexloop, folder / "hexloop", loss_weighting="reference")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of transformers itself
        return ours, observe(script, transformers, folder / "reference")
