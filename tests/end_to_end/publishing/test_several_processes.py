"""Runs of several processes publish once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hexloop.adapters.hub import MESSAGE, FolderHub
from hexloop.domain.errors import ConfigurationError, RefusedError
from tests.end_to_end.small.trainers import small_trainer
from tests.engines.processes import in_processes


class NamingHub(FolderHub):
    """Completes names, and refuses those with `no` in them."""

    def create(self, name: str, private: bool | None = None) -> str:
        if "no" in name:
            raise RefusedError("403: not yours.")
        return super().create(name if "/" in name else f"me/{name}", private)


def made(folder: Path, rank: int, name: str) -> Any:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    given: Any = {"save_strategy": "steps", "save_steps": 1, "push_to_hub": True, "hub_always_push": True}
    return small_trainer(folder / "run", parts={"hub": NamingHub(folder / "hub")}, hub_model_id=name, **given)


def test_the_first_process_publishes(tmp_path: Path) -> None:
    """Each save is one version; the others get the name of the repository, and nothing from `push_to_hub`."""

    def train(rank: int) -> tuple[str, bool]:
        trainer = made(tmp_path, rank, "model")
        trainer.train()
        return trainer.hub_model_id, trainer.push_to_hub() is None

    assert in_processes(2, train) == [("me/model", False), ("me/model", True)]
    published = sorted(path for path in (tmp_path / "hub/me/model").iterdir() if path.name.isdecimal())
    assert [(path / MESSAGE).read_text() for path in published] == [
        "Training in progress, step 1",
        "Training in progress, step 2",
        "End of training",
    ]


def test_a_refusal_is_an_error_in_every_process(tmp_path: Path) -> None:
    """None of them waits for the others."""
    for error in in_processes(2, lambda rank: made(tmp_path, rank, "no")):
        assert isinstance(error, ConfigurationError)
        assert "hub_model_id='no': 403: not yours" in str(error)
