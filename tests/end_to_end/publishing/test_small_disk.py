"""Runs on a disk with little room whose hub is down: they go on, and the oldest pushes are dropped."""

from __future__ import annotations

import json
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexloop.adapters.hub import FolderHub, MemoryHub
from hexloop.adapters.hub.hugging_face import HuggingFaceHub
from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.assembly.outboxes import HUB
from hexloop.app.assembly.publishing import HubPublisher
from hexloop.app.assembly.pushes import Push
from hexloop.app.command_line import main
from hexloop.domain.checkpoints.reading import checkpoint_steps, verify
from hexloop.domain.errors import UnavailableError
from hexloop.domain.run_folder import OUTBOX
from tests.end_to_end.publishing.publishing_run import TOKEN
from tests.end_to_end.small.models import Net
from tests.end_to_end.small.trainers import small_trainer
from tests.engines.publishing_hub import publishing_hub

SIZE = "20m"
"""Of the disk, which has room for four checkpoints."""

STEPS = 12


class Large(Net):
    """The small model, with weights of 4 MiB that take no part in the loss but through their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.ballast = nn.Parameter(torch.zeros(1 << 20))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        found = super().forward(x, labels)
        return {**found, "loss": found["loss"] + self.ballast.sum()} if "loss" in found else found


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with a file system of its own, of `SIZE`."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.filterwarnings("ignore:The hub cannot be reached")
@pytest.mark.parametrize("background", [False, True])
def test_a_hub_that_is_down_does_not_fill_the_disk(
    background: bool, disk: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The run saves every checkpoint; the oldest pushes are dropped, each with a line in the log and a row.

    The newest is kept. Once the hub is back, it gets what was kept.
    """
    with publishing_hub() as hub:
        hub.is_down = True
        trainer = small_trainer(
            disk / "run", parts={"hub": HuggingFaceHub(hub.address, TOKEN), "model": Large()}, optim="sgd",
            max_steps=STEPS, save_strategy="steps", save_steps=1, save_total_limit=1, save_async=background,
            push_to_hub=True, hub_model_id="someone/model", hub_strategy="all_checkpoints", hub_always_push=True,
            outbox_grace=0,
        )  # fmt: skip
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            trainer.train()
        _, delivery = trainer._publisher._opened
        trainer._publisher.close()
        delivery.stop()  # wait for the attempt that is being made
        texts = [*caplog.messages, *(str(each.message) for each in warned)]
        storage = LocalStorage(disk / "run")
        assert max(checkpoint_steps(storage)) == STEPS
        verify(storage, f"checkpoint-{STEPS}")
        assert not [text for text in texts if "was not saved" in text]
        dropped = [text for text in texts if "this push was dropped: 'Training in progress, step" in text]
        assert 0 < len(dropped) < STEPS

        assert main(["outbox", "list", str(disk / "run"), "--json"]) == 1
        listed = json.loads(capsys.readouterr().out)
        kept = [each["subject"] for each in listed["entries"]]
        rows = [each["subject"] for each in listed["dropped"]]
        steps = [int(each.split("step ")[1].split("'")[0]) for each in [*rows, *kept]]
        assert steps == sorted(steps), "the oldest were dropped first"
        assert f"step {STEPS}'" in kept[-1]
        assert len(rows) == len(dropped)
        main(["outbox", "list", str(disk / "run")])
        assert f"dropped: {rows[0]}\n  the disk is full" in capsys.readouterr().out

        hub.is_down = False
        assert main(["outbox", "flush", str(disk / "run"), "--hub", hub.address]) == 0
        found = {commit.message for commit in hub.repositories["someone/model"].branches["main"]}
        assert found >= {each.split("'")[1] for each in kept}


def left_in(folder: Path) -> list[str]:
    return [
        json.loads(path.read_text())["details"]["message"] for path in sorted((folder / OUTBOX / HUB).glob("*.json"))
    ]


def test_what_is_dropped_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest checkpoints; never the newest push of a repository and branch, nor a whole folder."""

    class Down(MemoryHub):
        def create(self, name: str, private: bool | None = None) -> str:
            raise UnavailableError("down")

    publisher = HubPublisher(Down(), str(tmp_path))
    monkeypatch.setattr("hexloop.app.assembly.publishing.free_bytes", lambda held: 0)

    def push(message: str, name: str = "me/model", covers: str = "model", branch: str = "main", room: int = 0) -> None:
        def fill(folder: Path) -> None:
            (folder / "weights").write_bytes(b"123")

        made = Push("memory", name, message, [covers], branch=branch)
        publisher.push(made, fill, replaces=False, room=room)

    push("first")
    push("folder", covers="folder")
    push("other", name="me/other")
    push("branch", branch="b")
    push("second")
    push("third")
    push("fourth", room=1)
    publisher.close()
    told = [text for text in caplog.messages if "this push was dropped" in text]
    assert [text.split("dropped: ")[1].split("'")[1] for text in told] == [
        "first",
        "second",
        "third",
    ]
    assert left_in(tmp_path) == ["folder", "other", "branch", "fourth"]


def test_a_push_that_does_not_fit_drops_older_ones(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also where files are copied, because they are on another disk."""
    hub = FolderHub(disk.parent / "hub")
    publisher = HubPublisher(hub, str(disk))
    publisher.open(deliver=False)

    def fill(folder: Path) -> None:
        (folder / "weights").write_bytes(bytes(6 << 20))

    held, _ = publisher._opened

    def push(step: int) -> None:
        publisher.push(Push(hub.address, "me/model", f"step {step}", ["model"]), fill, replaces=False)

    with held.outbox.changed:  # so that nothing is delivered meanwhile
        for step in range(3):
            push(step)
        push(3)
        assert "Because the disk is full, this push was dropped: 'step 0'" in caplog.text
        assert left_in(disk) == ["step 1", "step 2", "step 3"]
    publisher.close()
