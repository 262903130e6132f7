"""Runs that publish on a server on loopback that fails, as processes of their own, some of them killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitInfo, ModelCard

from hexloop.adapters.hub import MemoryHub
from hexloop.adapters.hub.hugging_face import HuggingFaceHub
from tests.end_to_end.publishing.faults import (
    FAULTS,
    LAST,
    assert_complete,
    finished,
    outcome,
    start,
)
from tests.end_to_end.publishing.kills import killed_often
from tests.end_to_end.publishing.publishing_run import TOKEN
from tests.end_to_end.small.trainers import small_trainer
from tests.engines.publishing_hub import HubFault, publishing_hub


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """Return the log and the final weights of a run without a hub."""
    folder = tmp_path_factory.mktemp("plain")
    output, _ = finished(start(folder, "http://127.0.0.1:9", push_to_hub=False))
    return output, (folder / f"checkpoint-{LAST}" / "model.safetensors").read_bytes()


QUICK = {"500", "down, back after the run"}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.matrix]) for name in FAULTS]
)
def test_a_hub_that_fails_does_not_change_a_run(name: str, plain: tuple[str, bytes], tmp_path: Path) -> None:
    """Log, weights and exit code are those of a run without a hub; in the end the hub has everything, once.

    What is left at the end of the run is named with its reason, and the command that is named publishes it.
    """
    with publishing_hub() as hub:
        found = outcome(name, hub, tmp_path)
        assert found.output == plain[0]
        assert (tmp_path / f"checkpoint-{LAST}" / "model.safetensors").read_bytes() == plain[1]
        assert bool(found.left) == FAULTS[name].left
        if found.left:
            assert f"Training in progress, step {LAST}' to someone/model on {hub.address}" in found.seen
            assert all(entry["problem"] or not entry["failures"] for entry in found.left)
            refused = all(entry["refused"] for entry in found.left)
            assert found.command.startswith(f"outbox {'retry' if refused else 'flush'} {tmp_path}")
        assert_complete(hub, tmp_path)
        assert TOKEN not in found.output + found.errors + found.after
        assert not any(TOKEN.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_the_final_model_is_a_commit_of_the_package(tmp_path: Path) -> None:
    """`push_to_hub` returns huggingface_hub's own class, and the card is one that the package accepts."""
    with publishing_hub() as hub:
        made = HuggingFaceHub(hub.address, TOKEN)
        trainer = small_trainer(tmp_path, parts={"hub": made}, push_to_hub=True, hub_model_id="model")
        commit = trainer.push_to_hub()
        assert trainer.hub_model_id == "someone/model"
        assert isinstance(commit, CommitInfo)
        assert commit.oid == hub.commits("someone/model")[-1].oid
        assert commit.commit_url == f"{hub.address}/someone/model/commit/{commit.oid}"
        metadata: Any = ModelCard(hub.files("someone/model")["README.md"].decode()).data
        assert metadata.library_name == "hexloop"


def test_another_token_is_used_from_then_on(tmp_path: Path) -> None:
    """`init_hf_repo` and `push_to_hub` take one; hubs without tokens ignore it."""
    another, plain = "hf_another0123456789", MemoryHub()
    with publishing_hub() as hub:
        parts = {"hub": HuggingFaceHub(hub.address, TOKEN)}
        small_trainer(tmp_path / "one", parts=parts, hub_model_id="model").init_hf_repo(token=another, private=True)
        assert hub.tokens == {f"Bearer {another}"}
        assert hub.repositories["someone/model"].private is True
    small_trainer(tmp_path / "two", parts={"hub": plain}, hub_model_id="model").push_to_hub(token=another)
    assert len(plain.versions["model"]) == 1


def test_a_refusal_is_known_before_the_first_step(tmp_path: Path) -> None:
    """A token that is wrong ends the program with a message that names the repository and what to do."""
    with publishing_hub() as hub:
        hub.faults.append(HubFault("repos/create", 401, times=10**9))
        process = start(tmp_path, hub.address)
        _, errors = process.communicate(timeout=240)
        assert process.returncode != 0
        assert "ConfigurationError: The hub refuses hub_model_id='someone/model'" in errors
        assert "Check the token" in errors
        assert not list(tmp_path.glob("checkpoint-*"))


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_is_killed_while_it_publishes_loses_nothing(seed: int, tmp_path: Path) -> None:
    """However often it is killed, the hub never shows a torn version, and ends with the whole last state."""
    assert killed_often(seed, tmp_path) > 0
