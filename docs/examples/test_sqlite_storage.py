"""The contract suite of storages for the SQLite storage, and a run that resumes from it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlite_storage import SQLiteStorage
from torch import Tensor, nn

from hexloop import Trainer, TrainingArguments
from hexloop.domain.errors import StorageFullError
from hexloop.ports.storage import Storage
from hexloop.testing import StorageContract


class TestSQLiteStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return SQLiteStorage(tmp_path / "checkpoints.sqlite")


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layer(x), labels)}


def trained(storage: Storage, folder: Path, steps: int, resume: bool = False) -> dict[str, Tensor]:
    """Return the weights after a run that saves every fifth step to `storage`."""
    torch.manual_seed(0)
    rows = [{"x": torch.tensor([x / 8]), "labels": torch.tensor([x / 4 + 1])} for x in range(16)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, save_steps=5, lr_scheduler_type="constant", use_cpu=True
    )
    trainer = Trainer(model=Line(), args=arguments, train_dataset=rows, storage=storage, loggers=[])
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model.state_dict()


def test_a_run_goes_on_from_the_database(tmp_path: Path) -> None:
    """Ten steps, saved and resumed with another storage object, equal ten steps in one run."""
    whole = trained(SQLiteStorage(tmp_path / "whole.sqlite"), tmp_path, 10)
    trained(SQLiteStorage(tmp_path / "parts.sqlite"), tmp_path, 5)
    resumed = trained(SQLiteStorage(tmp_path / "parts.sqlite"), tmp_path, 10, resume=True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_file_can_be_written_from_one_that_is_being_read(tmp_path: Path) -> None:
    """Reading does not block writing."""
    storage = SQLiteStorage(tmp_path / "checkpoints.sqlite")
    storage.write("one", [b"some", b"bytes"])
    assert storage.write("other", storage.read("one")) == storage.digest("one")


def test_a_full_database_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk raises StorageFullError and leaves existing files intact."""
    storage = SQLiteStorage(tmp_path / "small.sqlite")
    storage.write("first", [b"here"])
    connect = sqlite3.connect

    def small(*args: Any, **options: Any) -> sqlite3.Connection:
        database = connect(*args, **options)
        database.execute("pragma max_page_count = 10")
        return database

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(StorageFullError):
        storage.write("second", [bytes(1_000_000)])
    assert [entry.name for entry in storage.list("")] == ["first"]
    assert b"".join(storage.read("first")) == b"here"
