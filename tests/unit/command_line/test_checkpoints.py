"""`hexloop checkpoints list`, `verify`, `show` and `prune`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from hexloop.adapters.storage.fsspec import FsspecStorage
from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.checkpoint_rows import format_age, format_bytes
from hexloop.domain.checkpoints.manifest import Owner, new_session
from hexloop.domain.checkpoints.selection import quarantine
from hexloop.ports.storage import Storage
from tests.unit.checkpoints.small_store import names
from tests.unit.command_line.commands import Commands, Outcome
from tests.unit.command_line.small_checkpoints import flip, saved

WITHOUT_TORCH = """
import json
import sys

sys.modules["torch"] = None
from hexloop.app.command_line import main

for words in json.loads(sys.argv[1]):
    assert main(["checkpoints", *words]) == 0, words
"""


@pytest.fixture(params=["folder", "url"])
def folder(request: pytest.FixtureRequest) -> str:
    """The output folder: a local folder, published by renaming, or a URL, published by its manifest."""
    return "runs/one" if request.param == "folder" else f"memory://bucket/{uuid.uuid4().hex}"


def storage_of(folder: str) -> Storage:
    return FsspecStorage(folder) if "://" in folder else LocalStorage(folder)


def listed(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Return the --json output for each folder."""
    return {each["name"]: each for each in json.loads(outcome.output)["checkpoints"]}


def test_list_shows_step_size_metric_run_and_condition(commands: Commands, folder: str) -> None:
    """`list` prints one line a checkpoint by step, marks the newest and the best, and exits with 0."""
    saved(storage_of(folder), "morning-run-1", 10, 20, 100)
    outcome = commands("checkpoints", "list", folder)
    assert (outcome.code, outcome.errors) == (0, "")
    head, *lines = outcome.output.splitlines()
    assert head.split() == ["name", "step", "age", "size", "metric", "run", "state"]
    assert [line.split()[0] for line in lines] == ["checkpoint-10", "checkpoint-20", "checkpoint-100"]
    assert [line.split()[7:] for line in lines] == [
        ["1", "morning-", "good"],
        ["0", "morning-", "good", "best"],
        ["8", "morning-", "good", "newest"],
    ]
    reported = listed(commands("checkpoints", "list", folder, "--json"))["checkpoint-20"]
    manifest = json.loads(b"".join(storage_of(folder).read("checkpoint-20/manifest.json")))
    assert reported["size"] == sum(stored["size"] for stored in manifest["files"].values())
    assert reported["written"] is not None
    assert (reported["step"], reported["run"], reported["metric"]) == (20, "morning-run-1", {"eval_loss": 0.0})


def test_list_shows_why_a_checkpoint_is_bad(commands: Commands, folder: str) -> None:
    """A bad checkpoint gives exit code 1 and its reason; --quick does not read file contents."""
    storage = storage_of(folder)
    saved(storage, "run", 10, 20, 30)
    flip(storage, "checkpoint-30/model.safetensors")
    storage.remove("checkpoint-10/optimizer.safetensors")
    outcome = commands("checkpoints", "list", folder)
    assert outcome.code == 1
    lines = outcome.output.splitlines()
    assert lines[1].startswith("checkpoint-10 ")
    assert lines[2] == "  is damaged: optimizer.safetensors is missing."
    assert lines[3].split()[-3:] == ["good", "newest,", "best"]
    assert lines[5] == "  is damaged: model.safetensors does not hold the bytes that were stored."
    quick = commands("checkpoints", "list", folder, "--quick")
    assert quick.code == 0
    assert [line.split("not verified")[1].strip() for line in quick.output.splitlines()[1:]] == ["", "", "newest"]
    assert "eval_loss" not in quick.output


def test_list_distinguishes_other_folders(commands: Commands, folder: str) -> None:
    """Set-aside, unfinished and foreign folders are listed as such; a missing manifest is bad."""
    storage = storage_of(folder)
    saved(storage, "run", 10, 20, 30)
    aside = quarantine(storage, "checkpoint-10", "dropped by hand").removesuffix("/damaged-1-manifest.json")
    owner = Owner("run", new_session())
    unfinished = owner.staging_name("checkpoint-40") if folder.startswith("runs") else "checkpoint-40"
    storage.write(f"{unfinished}/model.safetensors", [b"half"])
    storage.write(f"{unfinished}/{owner.mark}", [])
    storage.write("checkpoint-50/pytorch_model.bin", [b"theirs"])
    assert commands("checkpoints", "list", folder).code == 0
    storage.remove("checkpoint-20/manifest.json")
    outcome = commands("checkpoints", "list", folder, "--json")
    assert outcome.code == 1
    reported = {name: (each["state"], each["reason"]) for name, each in listed(outcome).items()}
    assert reported[aside] == ("set aside", "dropped by hand")
    assert reported[unfinished] == ("unfinished", "a save or a removal that was not completed.")
    assert reported["checkpoint-50"][0] == "no checkpoint"
    assert reported["checkpoint-20"][0] == "bad"
    assert "it has no manifest.json" in reported["checkpoint-20"][1]
    assert reported["checkpoint-30"] == ("good", "")


def test_list_shows_complete_staged_checkpoints(commands: Commands) -> None:
    """A complete checkpoint that was not renamed is recovered on resume and never pruned."""
    storage = LocalStorage("runs")
    saved(storage, "run", 10, 20)
    staged = Owner("run", new_session()).staging_name("checkpoint-20")
    storage.move("checkpoint-20", staged)
    assert "next resume" in listed(commands("checkpoints", "list", "runs", "--json"))[staged]["reason"]
    assert commands("checkpoints", "prune", "runs", "--leftovers").code == 0
    assert staged in names(storage)


def test_list_distinguishes_runs(commands: Commands) -> None:
    """Each run has its own newest and best checkpoint."""
    storage = LocalStorage("runs")
    saved(storage, "first", 10, 20, 30)
    saved(storage, "second", 25, 35)
    reported = listed(commands("checkpoints", "list", "runs", "--json"))
    assert [name for name, each in reported.items() if each["newest"]] == ["checkpoint-30", "checkpoint-35"]
    assert [name for name, each in reported.items() if each["best"]] == ["checkpoint-20", "checkpoint-25"]


def test_verify_reports_all_problems(commands: Commands, folder: str) -> None:
    """`verify` accepts folders and checkpoints, changes nothing, and exits with 0 if all are good, else 1."""
    storage = storage_of(folder)
    saved(storage, "run", 10, 20)
    saved(LocalStorage("other"), "run", 5)
    good = commands("checkpoints", "verify", folder, "other/checkpoint-5")
    assert (good.code, good.output.splitlines()[-1]) == (0, "Good: all 3.")
    flip(storage, "checkpoint-10/model.safetensors")
    storage.remove("checkpoint-10/run_state.json")
    before = names(storage)
    bad = commands("checkpoints", "verify", folder, "other")
    assert bad.code == 1
    assert bad.output.splitlines()[:3] == [
        f"{folder}/checkpoint-10: bad",
        "  is damaged: model.safetensors does not hold the bytes that were stored; run_state.json is missing.",
        f"{folder}/checkpoint-20: good",
    ]
    assert bad.output.splitlines()[-1] == "Not good: 1 of 3."
    reported = json.loads(commands("checkpoints", "verify", f"{folder}/checkpoint-10", "--json").output)
    assert (reported["bad"], reported["checkpoints"][0]["good"]) == (1, False)
    assert names(storage) == before


def test_a_folder_without_a_manifest_is_not_good(commands: Commands, folder: str) -> None:
    """`verify` counts only what is good, and exits with 1 if a folder is no checkpoint, or nothing is good."""
    storage = storage_of(folder)
    saved(storage, "run", 10)
    storage.write("checkpoint-20/model.safetensors", [b"of another program"])
    bad = commands("checkpoints", "verify", folder)
    assert (bad.code, bad.output.splitlines()[-1]) == (1, "Not good: 1 of 2.")
    assert f"{folder}/checkpoint-20: no checkpoint" in bad.output
    storage.remove("checkpoint-10")
    alone = commands("checkpoints", "verify", folder)
    assert (alone.code, alone.output.splitlines()[-1]) == (1, "Not good: 1 of 1.")
    assert json.loads(commands("checkpoints", "verify", folder, "--json").output)["bad"] == 1
    saved(storage, "run", 10)
    storage.remove("checkpoint-20")
    storage.write("checkpoint-30/.unfinished-0123456789abcdef-1", [])
    live = commands("checkpoints", "verify", folder)
    assert (live.code, live.output.splitlines()[-1]) == (0, "Not good: 1 of 2.")


def test_prune_removes_replaced_checkpoints(commands: Commands, folder: str) -> None:
    """Whatever the runs in the folder; nothing else is removed."""
    storage = storage_of(folder)
    saved(storage, "first", 10, 20)
    saved(storage, "second", 20, 30)
    aside = ".hexloop/replaced-1-checkpoint-20"
    before = names(storage)
    dry = commands("checkpoints", "prune", folder, "--replaced", "--dry-run")
    assert (dry.code, dry.output) == (0, f"Would remove {aside}\n")
    assert names(storage) == before
    assert (
        "nothing to remove of the run second"
        in commands("checkpoints", "prune", folder, "--replaced", "--run", "second").output
    )
    done = json.loads(commands("checkpoints", "prune", folder, "--replaced", "--json").output)
    assert done == {"run": None, "removed": [], "leftovers": [], "replaced": [aside], "dry_run": False}
    assert aside in before
    assert names(storage) == [name for name in before if name != aside]
    both = commands("checkpoints", "prune", folder, "--replaced", "--keep", "1", "--run", "second")
    assert (both.code, both.output) == (0, "Removed checkpoint-20\n")


def test_show_prints_the_metadata_of_a_checkpoint(commands: Commands, folder: str) -> None:
    """`show` prints run, step, state, files with digests, and on request the tensors."""
    saved(storage_of(folder), "morning", 10, 20)
    text = commands("checkpoints", "show", f"{folder}/checkpoint-20", "--tensors").output
    for word in (
        "run         morning",
        "parent      checkpoint-10",
        "best_metric",
        "xxh3-128:",
        "Tensors of model.saf",
    ):
        assert word in text, text
    reported = json.loads(commands("checkpoints", "show", f"{folder}/checkpoint-20", "--tensors", "--json").output)
    assert (reported["run"], reported["step"], reported["parent"]) == ("morning", 20, "checkpoint-10")
    assert reported["state"]["best_checkpoint"] == "checkpoint-20"
    weight, bias = reported["tensors"]["model.safetensors"]
    assert (weight["name"], weight["dtype"], weight["shape"], bias["name"]) == ("weight", "F64", [3], "bias")
    manifest = json.loads(b"".join(storage_of(folder).read("checkpoint-20/manifest.json")))
    assert reported["files"] == manifest["files"]


def test_prune_keeps_the_last_and_the_best(commands: Commands, folder: str) -> None:
    """A dry run reports the same and removes nothing."""
    storage = storage_of(folder)
    saved(storage, "run", 10, 20, 30, 40, 50)
    words = ("checkpoints", "prune", folder, "--keep", "2", "--keep-best")
    dry = commands(*words, "--dry-run")
    assert dry.output.splitlines() == [f"Would remove checkpoint-{step}" for step in (10, 30, 40)]
    assert len(names(storage)) == 5
    outcome = commands(*words)
    assert (outcome.code, outcome.errors) == (0, "")
    assert outcome.output.splitlines() == [f"Removed checkpoint-{step}" for step in (10, 30, 40)]
    assert names(storage) == ["checkpoint-20", "checkpoint-50"]
    assert commands("checkpoints", "verify", folder).code == 0
    assert commands(*words).output == f"There is nothing to remove of the run run in {folder}.\n"
    reported = json.loads(commands("checkpoints", "prune", folder, "--keep", "1", "--json").output)
    assert reported == {"run": "run", "removed": ["checkpoint-20"], "leftovers": [], "replaced": [], "dry_run": False}


def test_prune_removes_checkpoints_of_one_run_only(commands: Commands, folder: str) -> None:
    """With several runs, one is selected by a prefix of its name; the others are kept."""
    storage = storage_of(folder)
    saved(storage, "apple", 10, 30, 50)
    saved(storage, "banana", 20, 40)
    outcome = commands("checkpoints", "prune", folder, "--keep", "1")
    assert outcome.code == 2
    assert "it has the runs apple, banana; name one run with --run" in outcome.errors
    assert commands("checkpoints", "prune", folder, "--keep", "1", "--run", "cherry").code == 2
    assert len(names(storage)) == 5
    assert commands("checkpoints", "prune", folder, "--keep", "1", "--run", "ap").code == 0
    assert sorted(names(storage)) == ["checkpoint-20", "checkpoint-40", "checkpoint-50"]


def test_prune_keeps_protected_checkpoints(commands: Commands, folder: str) -> None:
    """A checkpoint with the protection file in its folder is kept."""
    storage = storage_of(folder)
    saved(storage, "run", 10, 20, 30)
    storage.write("checkpoint-10/protected", [b""])
    outcome = commands("checkpoints", "prune", folder, "--keep", "1")
    assert outcome.output.splitlines() == ["Removed checkpoint-20"]
    assert names(storage) == ["checkpoint-10", "checkpoint-30"]


def test_prune_of_a_checkpoint_asks_for_the_output_folder(commands: Commands, folder: str) -> None:
    """`prune` takes the output folder, not a checkpoint."""
    saved(storage_of(folder), "run", 10, 20)
    outcome = commands("checkpoints", "prune", f"{folder}/checkpoint-20", "--keep", "1")
    assert outcome.code == 2
    assert "that is a checkpoint itself; name the folder that contains it" in outcome.errors


def test_prune_keeps_abandoned_branches(commands: Commands) -> None:
    """If a run resumed from an older checkpoint, only ancestors of the newest are pruned."""
    storage = LocalStorage("runs")
    saved(storage, "run", 10, 20, 30)
    again = saved(storage, "run")
    resumed = again.store.resume("checkpoint-10")
    assert resumed is not None
    again.state = resumed
    again.save(15)
    again.save(25)
    assert commands("checkpoints", "prune", "runs", "--keep", "1").output.splitlines() == [
        "Removed checkpoint-10",
        "Removed checkpoint-15",
    ]
    assert names(storage) == ["checkpoint-20", "checkpoint-25", "checkpoint-30"]


@pytest.mark.parametrize("file", ["model.safetensors", "manifest.json"])
def test_prune_removes_nothing_if_the_newest_is_bad(commands: Commands, folder: str, file: str) -> None:
    """Nothing is removed if the newest checkpoint is bad or its run is unknown."""
    storage = storage_of(folder)
    saved(storage, "run", 10, 20, 30)
    flip(storage, f"checkpoint-30/{file}")
    outcome = commands("checkpoints", "prune", folder, "--keep", "1")
    assert outcome.code == 1
    assert "Nothing is removed, because" in outcome.errors
    assert len(names(storage)) == 3


def test_prune_removes_unfinished_saves_of_the_run(commands: Commands, folder: str) -> None:
    """Unfinished saves of other runs and set-aside folders are kept."""
    storage = storage_of(folder)
    saved(storage, "run", 10, 20)
    saved(storage, "other", 15)
    left = []
    for run, step in (("run", 30), ("other", 40)):
        owner = Owner(run, new_session())
        left.append(owner.staging_name(f"checkpoint-{step}") if folder.startswith("runs") else f"checkpoint-{step}")
        storage.write(f"{left[-1]}/{owner.mark}", [])
        storage.write(f"{left[-1]}/model.safetensors", [b"half"])
    storage.write("damaged-1-checkpoint-5/model.safetensors", [b"half"])
    words = ("checkpoints", "prune", folder, "--leftovers", "--run", "run")
    assert commands(*words, "--dry-run").output == f"Would remove {left[0]}\n"
    assert commands(*words).output == f"Removed {left[0]}\n"
    assert set(names(storage)) == {
        "checkpoint-10", "checkpoint-15", "checkpoint-20", "damaged-1-checkpoint-5", left[1],
    }  # fmt: skip


def test_prune_keeps_checkpoints_not_yet_uploaded(commands: Commands) -> None:
    """Checkpoints in the outbox of a tiered storage are kept, as the copy may be the only one."""
    fast = LocalStorage("fast")
    saved(fast, "run", 10, 20)
    fast.write(".hexloop/outbox/00000000000000000001-0.json", [b"{}"])
    outcome = commands("checkpoints", "prune", "fast", "--keep", "1")
    assert outcome.code == 1
    assert "still to be sent" in outcome.errors
    fast.remove(".hexloop/outbox/00000000000000000001-0.json")
    assert commands("checkpoints", "prune", "fast", "--keep", "1").code == 0


def test_cryptographic_digests_are_verified(commands: Commands) -> None:
    """Checkpoints with cryptographic digests are verified by these."""
    storage = LocalStorage("runs", digest="blake2b")
    saved(storage, "run", 10, 20)
    assert commands("checkpoints", "list", "runs").code == 0
    assert commands("checkpoints", "verify", "runs/checkpoint-10").code == 0
    flip(storage, "checkpoint-10/model.safetensors")
    assert "does not hold the bytes" in commands("checkpoints", "verify", "runs").output


def test_show_takes_the_newest_checkpoint_of_a_folder(commands: Commands, folder: str) -> None:
    """Of several runs it is that of the latest session, whatever its step; one that cannot be read is passed over."""
    storage = storage_of(folder)
    saved(storage, "first", 10, 40)
    saved(storage, "second", 20, 30)
    shown = commands("checkpoints", "show", folder)
    assert (shown.code, shown.output.splitlines()[0].split()) == (0, ["checkpoint", f"{folder}/checkpoint-30"])
    reported = json.loads(commands("checkpoints", "show", folder, "--json").output)
    assert (reported["run"], reported["step"]) == ("second", 30)
    storage.remove("checkpoint-30/manifest.json")
    storage.write("checkpoint-30/manifest.json", [b"{"])
    assert json.loads(commands("checkpoints", "show", folder, "--json").output)["step"] == 20


def test_missing_folders_and_checkpoints_are_reported(commands: Commands) -> None:
    """A missing folder exits with 2; without checkpoints `list` exits with 0 and `verify` with 1."""
    os.mkdir("empty")
    for command in ("list", "verify", "show"):
        outcome = commands("checkpoints", command, "nowhere")
        assert outcome.code == 2
        assert "You chose nowhere, but there is no such folder" in outcome.errors
    listing = commands("checkpoints", "list", "empty")
    assert (listing.code, listing.output) == (0, "There is no checkpoint in empty.\n")
    assert commands("checkpoints", "verify", "empty").code == 1
    shown = commands("checkpoints", "show", "empty")
    assert (shown.code, "it contains no checkpoint; name another folder" in shown.errors) == (1, True)
    assert commands("checkpoints", "prune", "empty").code == 2
    assert commands("checkpoints", "prune", "empty", "--keep", "0").code == 2
    assert commands("checkpoints", "prune", "empty", "--keep", "1").code == 2


def test_torch_is_not_imported(tmp_path: Path) -> None:
    """Commands on checkpoints, and the help, work without torch."""
    saved(LocalStorage(tmp_path / "runs"), "run", 10, 20)
    lines = [
        ["list", "runs"],
        ["verify", "runs"],
        ["show", "runs/checkpoint-20", "--tensors"],
        ["diff", "runs/checkpoint-20", "runs/checkpoint-20", "--all"],
        ["prune", "runs", "--keep", "1", "--keep-best"],
        ["prune", "--help"],
    ]
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, json.dumps(lines)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert names(LocalStorage(tmp_path / "runs")) == ["checkpoint-20"]


def test_sizes_and_ages_have_readable_units() -> None:
    """Sizes and ages have at most three digits in the largest unit that fits."""
    assert [format_bytes(size) for size in (None, 0, 999, 1000, 999_600, 1_500_000_000)] == [
        "-", "0 B", "999 B", "1 kB", "1 MB", "1.5 GB",
    ]  # fmt: skip
    assert [format_age(age) for age in (None, -1, 59, 60, 7200, 200_000)] == ["-", "0 s", "59 s", "1 min", "2 h", "2 d"]
