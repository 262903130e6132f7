"""Folders of checkpoints with a link out of them, and folders that another process changes meanwhile."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from hexloop.app.command_line import main
from hexloop.domain.checkpoints.manifest import Manifest, Owner
from tests.end_to_end.checkpoint_folder import copy_of, make_checkpoint
from tests.end_to_end.hostile.doors import ask
from tests.end_to_end.small.trainers import small_trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("target", ["outside", "nowhere", "file"])
def test_a_checkpoint_that_links_elsewhere_does_not_block_the_others(whole: Path, tmp_path: Path, target: str) -> None:
    """It is named where checkpoints are listed and skipped where one is resumed from; what it leads to is untouched."""
    checkpoint = copy_of(whole, tmp_path / "output")
    outside = tmp_path / "outside"
    shutil.copytree(whole, outside)
    (tmp_path / "file").touch()
    (checkpoint.parent / "checkpoint-9").symlink_to(tmp_path / target)
    before = sorted(outside.rglob("*"))
    listed, pruned, verified, resumed = ask(
        ["checkpoints", "list", checkpoint.parent],
        ["checkpoints", "prune", checkpoint.parent, "--keep", "1", "--leftovers"],
        ["checkpoints", "verify", checkpoint.parent],
        ["checkpoints", "verify", checkpoint.parent / "checkpoint-9"],
    )
    assert pruned.code == 0, pruned
    if target == "outside":
        assert (listed.code, "leads out of" in listed.output) == (1, True), listed
        assert (verified.code, "leads out of" in verified.output) == (1, True), verified
        assert (resumed.code, "leads out of" in resumed.output) == (1, True), resumed
    trainer = small_trainer(checkpoint.parent, max_steps=4, save_strategy="steps", save_steps=3, save_total_limit=1)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 4
    assert any("checkpoint-9" in str(each.message) for each in warned) == (target == "outside")
    assert (checkpoint.parent / "checkpoint-9").is_symlink()
    assert sorted(outside.rglob("*")) == before


CHANGES = """
import os, shutil, sys, time
from pathlib import Path

folder, names, source, stop = Path(sys.argv[1]), sys.argv[2].split(","), Path(sys.argv[3]), Path(sys.argv[4])
print("ready", flush=True)
while not stop.exists():
    for name in names:
        for make in (shutil.copytree, lambda _, to: to.mkdir()):
            try:
                make(source, folder / name)
            except OSError as error:
                pass
            shutil.rmtree(folder / name, ignore_errors=True)
"""


def test_prune_in_a_folder_that_another_process_changes(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`prune --leftovers` and `list` succeed at every instant while folders of the run appear and vanish."""
    checkpoint = copy_of(whole, tmp_path / "output")
    run = Manifest.from_json((checkpoint / "manifest.json").read_bytes()).run
    mark = Owner(run, "0").mark
    names = [f"{mark}-checkpoint-5", f"{mark}-checkpoint-7", "checkpoint-8", "damaged-1-checkpoint-3"]
    command = [sys.executable, "-c", CHANGES, checkpoint.parent, ",".join(names), whole, tmp_path / "stop"]
    outcomes = list[tuple[int, str]]()
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            for _ in range(150):
                code = main(["checkpoints", "prune", str(checkpoint.parent), "--leftovers", "--json"])
                read = capsys.readouterr()
                outcomes.append((code, read.err))
        finally:
            (tmp_path / "stop").touch()
    assert {code for code, _ in outcomes} == {0}, [errors for code, errors in outcomes if code]
    assert (checkpoint / "manifest.json").exists()
    assert main(["checkpoints", "verify", str(checkpoint), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
