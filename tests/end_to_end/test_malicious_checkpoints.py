"""Malicious folders are refused with a clear error; no code of theirs runs, and nothing is written elsewhere."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import hexloop
from hexloop.app.assembly.torch.transformers_checkpoints.files import SIGNS
from hexloop.domain.checkpoints.manifest import seal
from hexloop.domain.errors import HexloopError
from tests.end_to_end.checkpoint_folder import (
    NAME,
    STEP,
    copy_of,
    make_checkpoint,
    refused_by_resume,
    refused_by_verify,
)
from tests.end_to_end.small.documents import document_of, replace_document, split
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights
from tests.resealing import manifest_entries, reseal, write_manifest

PICKLED = (*SIGNS, "scaler.pt", "rng_state_1.pth", "optimizer.bin", "adapter_model.bin")
HUGE = 2**60


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A file that only code in a checkpoint would write."""
    return tmp_path / "executed"


def bomb(trap: Path) -> bytes:
    """A pickle that writes the file when it is loaded."""
    return f"cbuiltins\nexec\n(V__import__('pathlib').Path({str(trap)!r}).touch()\ntR.".encode()


def zipped(pickled: bytes, path: Path) -> None:
    """The pickle in torch's archive format."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + pickled)
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/byteorder", b"little")


def in_manifest(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Change the manifest, and seal it again."""

    def apply(checkpoint: Path) -> None:
        document = manifest_entries(checkpoint)
        change(document)
        write_manifest(checkpoint, document)

    return apply


def sealed(body: bytes) -> Callable[[Path], None]:
    """Replace the manifest by a sealed document."""

    def apply(checkpoint: Path) -> None:
        (checkpoint / "manifest.json").write_bytes(seal(body))

    return apply


def naming(path: str) -> Callable[[Path], None]:
    def change(document: dict[str, Any]) -> None:
        document["files"][path] = document["files"]["run_state.json"]

    return in_manifest(change)


def holding(file: str, data: bytes | Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Replace the content of a file, with a matching digest in the manifest."""

    def apply(checkpoint: Path) -> None:
        path = checkpoint / file
        path.write_bytes(data if isinstance(data, bytes) else data(path.read_bytes()))
        reseal(checkpoint)

    return apply


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded + data


def tensor(shape: list[Any], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def one_tensor(shape: list[Any], end: int, dtype: str = "F32", name: str = "a") -> bytes:
    return safetensors({name: tensor(shape, 0, end, dtype)})


def linked(file: str, target: str) -> Callable[[Path], None]:
    def apply(checkpoint: Path) -> None:
        place = checkpoint / file
        outside = checkpoint.parent.parent / "outside"
        outside.write_bytes(place.read_bytes())
        place.unlink()
        place.symlink_to(target.format(outside=outside))

    return apply


def fifo(checkpoint: Path) -> None:
    (checkpoint / "optimizer.safetensors").unlink()
    os.mkfifo(checkpoint / "optimizer.safetensors")


def sharded_elsewhere(path: str) -> Callable[[Path], None]:
    def apply(checkpoint: Path) -> None:
        def rename(document: dict[str, Any]) -> None:
            document["files"]["model.safetensors.index.json"] = document["files"].pop("model.safetensors")

        (checkpoint / "model.safetensors").unlink()
        index = {"weight_map": {"layers.0.weight": path}}
        (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
        in_manifest(rename)(checkpoint)
        reseal(checkpoint)

    return apply


WEIGHT = "layers.0.weight"
DEEP = b"[" * 200_000 + b"]" * 200_000
TWICE = b'{"schema_version": 1, "schema_version": 1}'


def endless(file: str, size: int) -> Callable[[Path], None]:
    """A sparse file larger than any memory."""
    return lambda checkpoint: os.truncate(checkpoint / file, size)


def of_moment(change: Callable[[torch.Tensor], torch.Tensor], key: str = "exp_avg") -> Callable[[Path], None]:
    """Replace a moment of the first weight by another tensor."""

    def apply(checkpoint: Path) -> None:
        path = checkpoint / "optimizer.safetensors"
        tensors = load_file(path)
        tensors[f"{WEIGHT}.{key}"] = change(tensors[f"{WEIGHT}.{key}"])
        save_file(tensors, path)
        reseal(checkpoint)

    return apply


def in_document(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change a JSON document, with a matching digest in the manifest."""

    def apply(checkpoint: Path) -> None:
        document = document_of(checkpoint, name)
        change(document)
        replace_document(checkpoint, name, json.dumps(document).encode())
        reseal(checkpoint)

    return apply


def being(name: str, data: bytes) -> Callable[[Path], None]:
    """Replace a JSON document by other bytes, with a matching digest in the manifest."""

    def apply(checkpoint: Path) -> None:
        replace_document(checkpoint, name, data)
        reseal(checkpoint)

    return apply


def set_options(saved: dict[str, Any], **options: Any) -> None:
    """Set options of the first group, and list them as state that changed during the run."""
    saved["groups"][0].update(options)
    saved["state_keys"][0] += options


def change_random_states(document: dict[str, Any]) -> None:
    """Change a value in the states of two generators."""
    document["python"][0], document["numpy"][2] = 4, 625


def random_state(generator: str, place: int, value: Any) -> Callable[[Path], None]:
    """Change a value in the saved state of a random generator."""

    def change(document: dict[str, Any]) -> None:
        document[generator][place] = value

    return in_document("random", change)


CORPUS: dict[str, tuple[Callable[[Path], None], str]] = {
    "an absolute path in the manifest": (naming("/etc/hostname"), "not a path within"),
    "a path upwards in the manifest": (naming("../../outside"), "not a path within"),
    "a path upwards within one in the manifest": (naming("a/../../../outside"), "not a path within"),
    "a path with a null in the manifest": (naming("a\0b"), "not a path within"),
    "a path with a backslash in the manifest": (naming("..\\outside"), "not a path within"),
    "an absolute path in the index": (sharded_elsewhere("/etc/hostname"), "missing from the checkpoint"),
    "a path upwards in the index": (sharded_elsewhere("../checkpoint-2/run_state.json"), "missing from the checkpoint"),
    "a pickle in the index": (sharded_elsewhere("optimizer.pt"), "missing from the checkpoint"),
    "a huge size in the manifest": (lambda folder: reseal(folder, **{"model.safetensors": HUGE}), "should have"),
    "a manifest that never ends": (endless("manifest.json", 1 << 40), "longer than"),
    "a manifest that is no object": (sealed(b"[\n}\n"), "manifest"),
    "a deep manifest": (sealed(b'{\n  "a": ' + DEEP + b"\n}\n"), "manifest"),
    "a huge tensor": (holding("model.safetensors", one_tensor([HUGE], 4 * HUGE, name=WEIGHT)), WEIGHT),
    "a huge moment": (holding("optimizer.safetensors", one_tensor([HUGE], 4 * HUGE)), "optimizer"),
    "a header longer than its file": (holding("model.safetensors", safetensors({}, length=50_000_000)), "ends after"),
    "a header of endless length": (holding("model.safetensors", safetensors({}, length=2**63)), "its header has"),
    "a header of many dimensions": (
        holding("model.safetensors", one_tensor([10**900] * 65, 4, name=WEIGHT)), "in its header has the shape"
    ),
    "a tensor of many dimensions": (
        holding("model.safetensors", one_tensor([1] * 65, 4, name=WEIGHT)), "65 dimensions, more than 64"
    ),
    "a number of many digits": (
        holding("model.safetensors", safetensors(b'{"a":1' + b"0" * 4000 + b"}")), "number of more than 1000 digits"
    ),
    "many empty lists": (being("optimizer", b"[" + b"[]," * 4_000_000 + b"[]]"), "values; document_values raises"),
    "a text that is not Unicode": (being("optimizer", b'{"schema_version": 1, "\\ud800": 1}'), "not Unicode"),
    "a deep header": (holding("model.safetensors", safetensors(b'{"a":' + DEEP + b"}")), "not a safetensors file"),
    "a name twice in a header": (
        holding("model.safetensors", safetensors(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1}')),
        "twice",
    ),
    "a number that is none in a header": (holding("model.safetensors", safetensors(b'{"a":NaN}')), "NaN"),
    "tensors on top of each other": (
        holding("model.safetensors", safetensors({"a": tensor([1], 0, 4), "b": tensor([1], 0, 4)}, b"0000")),
        "not a safetensors file",
    ),
    "a tensor of a negative size": (holding("model.safetensors", one_tensor([-1], -4)), "safetensors"),
    "a tensor of an unknown type": (holding("model.safetensors", one_tensor([1], 4, "X")), "safetensors"),
    "a pickle for weights": (holding("model.safetensors", bomb(Path("executed"))), "its header has|ends after"),
    "a pickle for a document": (being("optimizer", bomb(Path("executed"))), "not a JSON document"),
    "a deep state": (holding("run_state.json", b'{"schema_version": 1, "run": ' + DEEP + b"}"), "nested in more than"),
    "a deep document": (being("optimizer", b'{"param_groups": ' + DEEP + b"}"), "nested in more than"),
    "a name twice in a document": (being("random", TWICE), "twice"),
    "a number that is none in a document": (holding("run_state.json", b'{"schema_version": NaN}'), "NaN"),
    "a number that is too large": (holding("run_state.json", b'{"schema_version": 1e999}'), "too large"),
    "a document of the future": (
        in_document("optimizer", lambda each: each.update(schema_version=99)),
        "schema version 99",
    ),
    "a step before the first": (
        in_document("run_state", lambda each: each.update(step=-1)), "is invalid: step: -1 is not between"
    ),
    "a checkpoint elsewhere as the best": (
        in_document("run_state", lambda each: each.update(best_checkpoint="../x", parent_checkpoint="x" * 300)),
        "best_checkpoint: '../x' is not the name of a folder; parent_checkpoint: 'xxx",
    ),
    "several wrong values": (
        in_document("run_state", lambda each: each.update(epoch=10**400, samples=1.5, due=["stop"], history={})),
        "epoch: a number of 1329 bits is not between 0 and 9007199254740992; samples: 1.5 is not a whole number; "
        "history: {} is not a list",
    ),
    "a callback whose state is a number": (
        in_document("run_state", lambda each: each["callbacks"].update(TrainerControl=5)),
        "callbacks.TrainerControl in its run state has no dictionary 'args'",
    ),
    "a callback with another state": (
        in_document("run_state", lambda each: each["callbacks"].update(TrainerControl={"args": {"x": 1}})),
        "callbacks.TrainerControl in its run state has no dictionary 'attributes'",
    ),
    "a control of other kinds": (
        in_document("run_state", lambda each: each["callbacks"]["TrainerControl"]["args"].update(should_log="x", a=1)),
        "callbacks.TrainerControl.args.should_log in its run state is 'x', which is not true or false.|"
        "callbacks.TrainerControl.args in its run state has the entry 'a', which a TrainerControl does not have",
    ),
    "a method of the control": (
        in_document("run_state", lambda each: each["callbacks"]["TrainerControl"]["attributes"].update(state=5)),
        "callbacks.TrainerControl.attributes in its run state has the entry 'state', which a TrainerControl does not",
    ),
    "an action that does not exist": (
        in_document("run_state", lambda each: each.update(due=["explode"])), "due: 'explode' is not one of log"
    ),
    "a state of the future": (
        in_document("run_state", lambda each: each.update(schema_version=99)),
        "schema version 99",
    ),
    "a setup of other kinds": (
        in_document("run_setup", lambda each: each.update(model=5, batch_size=0, samples_per_epoch="all", more=1)),
        "is invalid: model: 5 is not text; samples_per_epoch: 'all' is not a whole number; batch_size: 0 is not between"
    ),
    "a setup whose optimizer is a list": (
        in_document("run_setup", lambda each: each.update(optimizer=[])), "optimizer: [] is not a JSON object"
    ),
    "a group without its size": (
        in_document("run_setup", lambda each: each["optimizer"].update(groups=[{}, 5])),
        "optimizer.groups[0].parameters: it is missing; optimizer.groups[1]: 5 is not a JSON object",
    ),
    "a huge batch in the setup": (
        in_document("run_setup", lambda each: each.update(global_batch_size=2**53 - 1, batch_size=3)),
        "global_batch_size: 9007199254740991 is not between 1 and 2147483648",
    ),
    "losses of other kinds": (
        in_document("losses", lambda each: each["undrained"].update(sum="0", finite=-1, waiting=[[1.0]], more=1)),
        "undrained.sum: '0' is not a number; undrained.finite: -1 is not between 0 and 9007199254740992; "
        "undrained.waiting[0]: [1.0] is not a number; undrained: unknown entries 'more'. It was read from",
    ),
    "losses of a type that is none": (
        in_document("losses", lambda each: each["undrained"].update(dtype="load")),
        "undrained.dtype: 'load' is not one of float64, float32",
    ),
    "losses that are too many": (
        in_document("losses", lambda each: each["undrained"].update(finite=5, added=1)),
        "undrained.finite: 5 is more than the 1 losses that were added",
    ),
    "a loss beyond its type": (
        in_document("losses", lambda each: each["undrained"].update(waiting=[1e6], dtype="float16")),
        "undrained.waiting: 1000000.0 is too large for float16",
    ),
    "streams that are none": (
        being("random", b'{"schema_version": 1, "python": [3, [1], 0], "numpy": [1, 2, 3, 4, 5], "torch": ""}'),
        "random states are invalid",
    ),
    "moments of no elements": (of_moment(lambda moment: moment[:0, :0]), "exp_avg has shape"),
    "moments of one row": (of_moment(lambda moment: moment[:1].contiguous(), "exp_avg_sq"), "exp_avg_sq has shape"),
    "moments of bytes": (of_moment(lambda moment: moment.to(torch.uint8)), "exp_avg has type U8"),
    "a step of many numbers": (of_moment(lambda _: torch.zeros(3), "step"), "step has shape"),
    "an optimizer of other kinds": (
        in_document(
            "optimizer", lambda each: each["param_groups"].update(groups=[{"params": [5]}, 5], state_keys=5, more=1)
        ),
        "param_groups.groups[0].params[0]: 5 is not text; param_groups.groups[1]: 5 is not a JSON object; "
        "param_groups.state_keys: 5 is not a list; param_groups: unknown entries 'more'. It was read from",
    ),
    "a step below zero": (
        of_moment(lambda step: step - 9, "step"),
        f"{WEIGHT}.step: -7 is not a whole number from 0 to 9007199254740992. It was read from",
    ),
    "a step that is no number": (of_moment(lambda step: step * torch.nan, "step"), f"{WEIGHT}.step: nan is not"),
    "a huge step": (of_moment(lambda step: step * 1e30, "step"), f"{WEIGHT}.step: 2e+30 is not a whole number"),
    "a moment that is a number": (
        in_document("optimizer", lambda each: each["param_groups"]["state"][WEIGHT].update(exp_avg=1.0)),
        "unknown tensors|not a tensor",
    ),
    "a rate that is a text": (
        in_document("optimizer", lambda each: each["param_groups"]["groups"][0].update(lr="fast")), "not a number"
    ),
    "a rate below zero": (
        in_document("optimizer", lambda each: each["param_groups"]["groups"][0].update(lr=-1.0)), "Invalid learning"
    ),
    "an option as state of the optimizer": (
        in_document("optimizer", lambda each: set_options(each["param_groups"], eps=5.0)), "Start it with eps=5.0"
    ),
    "coefficients that are one number": (
        in_document("optimizer", lambda each: set_options(each["param_groups"], betas=1)), "betas"
    ),
    "coefficients beyond their range": (
        in_document("optimizer", lambda each: set_options(each["param_groups"], betas={"__tuple__": [1.5, 0.9]})),
        "Invalid beta",
    ),
    "a parameter without a moment": (
        in_document("optimizer", lambda each: each["param_groups"]["state"][WEIGHT].pop("exp_avg")),
        f"unknown tensors|{WEIGHT} has no exp_avg",
    ),
    "a moment of another optimizer": (
        in_document("optimizer", lambda each: each["param_groups"]["state"][WEIGHT].update(momentum_buffer=1.0)),
        f"{WEIGHT} has momentum_buffer, which AdamW does not have",
    ),
    "state of a parameter that does not exist": (
        in_document("optimizer", lambda each: each["param_groups"]["state"].update(other={})),
        "state of 'other', which is not one of its parameters",
    ),
    "a numpy position far away": (random_state("numpy", 2, 10**9), "1000000000"),
    "a numpy position before the first": (random_state("numpy", 2, -1), "-1"),
    "a numpy generator of few words": (random_state("numpy", 1, [1, 2]), "2 words"),
    "a numpy word that is too large": (random_state("numpy", 1, [2**40] * 624), "1099511627776"),
    "a numpy generator of another kind": (random_state("numpy", 0, "PCG64"), "PCG64"),
    "a numpy flag that is none": (random_state("numpy", 3, 7), "has_gauss"),
    "a python position far away": (random_state("python", 1, [1] * 624 + [10**9]), "1000000000"),
    "a python number that is a text": (random_state("python", 2, "a"), "Gaussian"),
    "random states of other kinds": (
        in_document("random", lambda each: each.update(python=5, numpy=[1, 2], more=1)),
        "random states are invalid: python: 5 is not a list; numpy: it has 2 entries, not 5; unknown entries 'more'. "
        "It was read from",
    ),
    "random states with several faults": (
        in_document("random", change_random_states),
        "python: the version of Python's generator is 4, not 3; numpy: the position of numpy's generator is 625, not",
    ),
    "a torch state that is no text": (
        in_document("random", lambda each: each.update(torch="%%")), "torch: 'Only base64 data is allowed'"
    ),
    "a torch state of no bytes": (in_document("random", lambda each: each.update(torch="")), "random states"),
    "groups that are none": (
        being("optimizer", b'{"schema_version": 1, "param_groups": {"groups": 5, "state": []}}'),
        "optimizer",
    ),
    "a link to a file elsewhere": (linked("model.safetensors", "{outside}"), "leads out of"),
    "a link upwards": (linked("run_state.json", "../../outside"), "leads out of"),
    "a pipe without a writer": (fifo, "not a regular file"),
}  # fmt: skip


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", CORPUS)
def test_a_malicious_checkpoint_is_refused(whole: Path, tmp_path: Path, name: str, apart: bool) -> None:
    """Resuming raises an error that names the problem, and no file outside has changed.

    apart: each document has a file of its own, as in hexloop 0.1.
    """
    spoil, words = CORPUS[name]
    checkpoint = copy_of(whole, tmp_path / "spoiled")
    if apart:
        split(checkpoint)
    spoil(checkpoint)
    (tmp_path / "output").mkdir()
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    told = refused_by_resume(checkpoint, tmp_path / "output")
    assert any(word in told for word in words.split("|")), told
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    assert not Path("executed").exists()


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_options_in_a_checkpoint_do_not_replace_those_of_the_run(whole: Path, tmp_path: Path, optim: str) -> None:
    """Learning rates come from the checkpoint and the schedule; all options are the run's own."""
    checkpoint = copy_of(whole, tmp_path / "spoiled")
    foreign = {"maximize": True, "eps": 1.0, "fused": optim == "adamw_torch", "betas": {"__tuple__": [0.1, 0.2]}}
    in_document("optimizer", lambda each: each["param_groups"]["groups"][0].update(foreign))(checkpoint)
    given: dict[str, Any] = {"max_steps": STEP + 2, "optim": optim}
    trainers = [small_trainer(tmp_path / name, **given) for name in ("expected", "run")]
    for trainer, folder in zip(trainers, (whole, checkpoint), strict=True):
        trainer.train(resume_from_checkpoint=str(folder))
    (expected, *_), (group, *_) = (trainer.optimizer.param_groups for trainer in trainers)
    names = ("maximize", "eps", "fused", "betas", "lr", "weight_decay")

    assert {name: group[name] for name in names} == {name: expected[name] for name in names}
    assert same_weights(weights(trainers[1]), weights(trainers[0]))


def test_a_checkpoint_that_is_a_link_elsewhere_is_refused(whole: Path, tmp_path: Path) -> None:
    """Its folder is elsewhere, so nothing is read from it."""
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / NAME).symlink_to(whole, target_is_directory=True)
    assert "leads out of" in refused_by_resume(tmp_path / "output" / NAME, tmp_path / "output")


@pytest.mark.skipif(not hasattr(os, "mknod") or os.geteuid() != 0, reason="only root makes device files")
def test_a_device_file_is_refused(whole: Path, tmp_path: Path) -> None:
    """An endless device in place of a file is never read."""
    import stat

    checkpoint = copy_of(whole, tmp_path / "spoiled")
    (checkpoint / "run_state.json").unlink()
    try:
        os.mknod(checkpoint / "run_state.json", 0o644 | stat.S_IFCHR, os.makedev(1, 5))
    except OSError:
        pytest.skip("not even root makes device files here")
    assert "not a regular file" in refused_by_verify(checkpoint)


@pytest.mark.parametrize("archive", [True, False])
def test_pickles_are_not_loaded_from_a_folder_of_another_library(
    whole: Path, tmp_path: Path, trap: Path, archive: bool
) -> None:
    """Under every name that transformers would load: the folder is refused, with the command that imports it."""
    checkpoint = copy_of(whole, tmp_path / "spoiled")
    (checkpoint / "manifest.json").unlink()
    plant(checkpoint, trap, archive)
    assert "hexloop checkpoints import" in refused_by_resume(checkpoint, tmp_path / "output")
    assert not trap.exists()


def plant(checkpoint: Path, trap: Path, archive: bool, names: tuple[str, ...] = PICKLED) -> None:
    for name in names:
        if archive:
            zipped(bomb(trap), checkpoint / name)
        else:
            (checkpoint / name).write_bytes(bomb(trap))


def test_pickles_beside_a_good_checkpoint_are_left_alone(whole: Path, tmp_path: Path, trap: Path) -> None:
    """Files that the manifest does not name are not loaded, and the run continues."""
    checkpoint = copy_of(whole, tmp_path / "good")
    plant(checkpoint, trap, archive=True)
    small_trainer(tmp_path / "output", max_steps=STEP + 1).train(resume_from_checkpoint=str(checkpoint))
    assert not trap.exists()


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth"])
def test_an_import_runs_nothing(whole: Path, tmp_path: Path, trap: Path, name: str, archive: bool) -> None:
    """One file of an otherwise valid transformers checkpoint is a pickle that runs code: it is refused by name."""
    folder = Path(hexloop.export_checkpoint(whole, tmp_path / "foreign"))
    if name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    plant(folder, trap, archive, (name,))
    with pytest.raises(HexloopError, match=name):
        hexloop.import_checkpoint(folder, tmp_path / "imported")
    assert not trap.exists()
    assert not (tmp_path / "imported").exists()


def test_an_import_ignores_pickled_arguments(whole: Path, tmp_path: Path, trap: Path) -> None:
    """training_args.bin may contain anything."""
    folder = Path(hexloop.export_checkpoint(whole, tmp_path / "foreign"))
    plant(folder, trap, True, ("training_args.bin",))
    with pytest.warns(UserWarning, match="training_args.bin is not loaded"):
        hexloop.import_checkpoint(folder, tmp_path / "imported")
    assert not trap.exists()


@pytest.mark.parametrize("name", ["optimizer.pt", "model.safetensors", "trainer_state.json", "config.json"])
def test_an_import_follows_no_link_out_of_the_folder(whole: Path, tmp_path: Path, name: str) -> None:
    """Nor does it read a pipe."""
    folder = Path(hexloop.export_checkpoint(whole, tmp_path / "foreign"))
    (tmp_path / "outside").write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(HexloopError, match="leads out of its folder"):
        hexloop.import_checkpoint(folder, tmp_path / "imported")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(HexloopError, match="not a regular file"):
        hexloop.import_checkpoint(folder, tmp_path / "imported")


def test_torch_s_safe_list_does_not_apply_to_an_import(whole: Path, tmp_path: Path) -> None:
    """A class that the user added to torch's safe list is not loaded, and stays on the list."""
    import torch

    folder = Path(hexloop.export_checkpoint(whole, tmp_path / "foreign"))
    torch.save({"python": Harmless()}, folder / "rng_state.pth")  # noqa: TID251 - a file of the other library
    with torch.serialization.safe_globals([Harmless]):
        trusted = set(torch.serialization.get_safe_globals())
        with pytest.raises(HexloopError, match=r"rng_state\.pth was not read"):
            hexloop.import_checkpoint(folder, tmp_path / "imported")
        assert set(torch.serialization.get_safe_globals()) == trusted >= {Harmless}


class Harmless:
    """A class that a program may have added to torch's safe list."""


POISONED = """
import sys
from pathlib import Path
import torch
from tests.end_to_end.small.trainers import small_trainer, weights
import hexloop.app.trainer.trainer, hexloop.app.run.session
import pickle, _pickle

def poisoned(*words, **named):
    raise AssertionError("something was unpickled")

for module in (pickle, _pickle):
    module.load = module.loads = poisoned
    module.Unpickler = type("Unpickler", (), {"__init__": poisoned})
torch.load = poisoned
trainer = small_trainer(Path(sys.argv[1]), max_steps=4, save_strategy="steps", save_steps=1)
trainer.train(resume_from_checkpoint=sys.argv[2])
try:
    pickle.loads(b"N.")
except AssertionError:
    print(trainer.state.global_step, float(sum(tensor.double().sum() for tensor in weights(trainer).values())).hex())
"""


def test_a_resume_unpickles_nothing(whole: Path, tmp_path: Path) -> None:
    """A process in which unpickling raises resumes from a checkpoint, saves, and ends with equal weights."""
    ended = subprocess.run(
        [sys.executable, "-c", POISONED, str(tmp_path / "output"), str(whole)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    usual = small_trainer(tmp_path / "usual", max_steps=4)
    usual.train(resume_from_checkpoint=str(whole))
    expected = float(sum(value.double().sum() for value in usual.model.state_dict().values())).hex()
    assert ended.stdout.split() == ["4", expected]
