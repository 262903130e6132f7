"""A script, run with either library, and everything that it leaves."""

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
"""What is added to the arguments of every script: samples in the same order, and quiet."""


@frozen
class Observation:
    """folder: where the script wrote. results: what it came to. outcome: what a callback saw of it."""

    folder: Path
    results: Results
    outcome: Outcome

    def files(self) -> set[str]:
        """Every file below the folder."""
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}

    def document(self, name: str) -> Any:
        """A JSON file of the folder; the paths in it begin there."""
        return json.loads((self.folder / name).read_text().replace(f"{self.folder}/", ""))

    def weights(self) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
        """Of every folder with weights its name, and the weights as the model loads them."""
        model = self.results.trainer.model
        for path in sorted(self.folder.rglob("model.safetensors")):
            loads = isinstance(model, transformers.PreTrainedModel)
            found = type(model).from_pretrained(path.parent).state_dict() if loads else load_file(path)
            yield path.parent.relative_to(self.folder).as_posix(), found


def observe(script: str, library: Any, folder: Path, main: str = "main", **options: Any) -> Observation:
    """Run the function `main` of the script with that library's Trainer, in a folder of its own."""
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    outcome = Outcome()
    run = getattr(import_module(f"tests.end_to_end.parity.scripts.{script}"), main)
    results = run(library, folder, [recorder(library, outcome)], **BOTH, **options)
    return Observation(folder, results, outcome)


def observe_both(script: str, folder: Path) -> tuple[Observation, Observation]:
    """By hexloop, which weighs losses as transformers does, and by transformers."""
    ours = observe(script, hexloop, folder / "hexloop", loss_weighting="reference")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own business
        return ours, observe(script, transformers, folder / "reference")
