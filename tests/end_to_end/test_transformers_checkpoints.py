"""Runs move between transformers and hexloop, in both directions, and resume exactly."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import hexloop
from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.command_line import main
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.errors import CheckpointError
from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import make_model
from tests.end_to_end.parity.runs import BOTH

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore:The run that resumes from:UserWarning",  # set by the other library
)

COUNT = 20
STEPS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "num_train_epochs": 2,
    "learning_rate": 0.01,
    "save_strategy": "steps",
    "save_steps": 3,
    "warmup_steps": 2,
}
"""Two epochs of five steps, saved in the middle of each."""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "AdamW with one kind of parameters": ("convolution", {}),
    "AdamW with weight decay, clipped": ("plain GPT", {"weight_decay": 0.1, "lr_scheduler_type": "cosine"}),
    "tied weights and accumulation with a partial window": (
        "GPT-2",
        {"gradient_accumulation_steps": 2, "save_steps": 2},
    ),
    "momentum": ("convolution", {"optim": "sgd", "optim_args": "momentum=0.9"}),
    "a schedule that follows a metric": (
        "convolution",
        {
            "lr_scheduler_type": "reduce_lr_on_plateau",
            "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "threshold": 0.5},
            "eval_strategy": "steps",
            "eval_steps": 1,
            "metric_for_best_model": "loss",
        },
    ),
}
MATRIX = ("AdamW with weight decay, clipped", "momentum")

Named = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.matrix] * (name in MATRIX)) for name in CASES]
)


def trained(library: Any, folder: Path, case: tuple[str, dict[str, Any]], resume: str | None = None) -> Any:
    """Return a Trainer of either library that has trained the case's model, from a checkpoint or from the start."""
    name, given = case
    arguments = {**BOTH, **STEPS, **given}
    if library is hexloop:
        arguments["loss_weighting"] = "reference"
    with warnings.catch_warnings():
        if library is transformers:
            warnings.simplefilter("ignore")
        model, data = make_model(name), samples_for(name, COUNT)
        if resume is not None:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1.0)
        trainer = library.Trainer(
            model=model,
            args=library.TrainingArguments(output_dir=str(folder), **arguments),
            train_dataset=data,
            eval_dataset=samples_for(name, 8, seed=1),
        )
        trainer.remove_callback(library.PrinterCallback)
        torch.rand(3)
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer: Any) -> list[tuple[int, float]]:
    return [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def assert_same_run(one: Any, other: Any) -> None:
    """Losses, learning rates and weights match."""
    assert [step for step, _ in losses(one)] == [step for step, _ in losses(other)]
    assert [loss for _, loss in losses(one)] == pytest.approx([loss for _, loss in losses(other)], abs=1e-6)
    for rates in ([entry["learning_rate"] for entry in each.state.log_history if "loss" in entry] for each in (one,)):
        assert rates == pytest.approx(
            [entry["learning_rate"] for entry in other.state.log_history if "loss" in entry], rel=1e-9
        )
    for name, parameter in one.model.named_parameters():
        assert torch.allclose(parameter, dict(other.model.named_parameters())[name], atol=2e-5), name


def imported(folder: Path, to: Path, **given: Any) -> str:
    with pytest.warns(UserWarning, match="training_args.bin is not loaded"):
        return hexloop.import_checkpoint(folder, to, **{"seed": BOTH["seed"], **given})


@pytest.mark.one_in(3)
@Named
def test_hexloop_resumes_a_transformers_run(tmp_path: Path, name: str) -> None:
    """Imported in the middle of the first or second epoch, the run finishes like transformers' own."""
    case = CASES[name]
    reference = trained(transformers, tmp_path / "reference", case)
    accumulation = case[1].get("gradient_accumulation_steps", 1)
    checkpoints = sorted((tmp_path / "reference").glob("checkpoint-*"))
    assert len(checkpoints) >= 3
    for checkpoint in checkpoints[-2:]:
        folder = imported(checkpoint, tmp_path / "imported", gradient_accumulation_steps=accumulation)
        assert folder == str(tmp_path / "imported" / checkpoint.name)
        assert verify(LocalStorage(tmp_path / "imported"), checkpoint.name).manifest.step > 0
        assert_same_run(trained(hexloop, tmp_path / checkpoint.name, case, folder), reference)


@pytest.mark.one_in(3)
@Named
def test_transformers_resumes_a_hexloop_run(tmp_path: Path, name: str) -> None:
    """Exported in the middle of an epoch, the run finishes in transformers like hexloop's own."""
    case = CASES[name]
    ours = trained(hexloop, tmp_path / "ours", case)
    checkpoint = min((tmp_path / "ours").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    folder = hexloop.export_checkpoint(checkpoint, tmp_path / "exported")

    assert sorted(path.suffix for path in Path(folder).iterdir() if path.suffix in (".pt", ".pth", ".bin")) == [
        ".pt", ".pt", ".pth",
    ]  # fmt: skip
    assert_same_run(trained(transformers, tmp_path / "reference", case, folder), ours)


def test_older_formats_are_read(tmp_path: Path) -> None:
    """Weights in pytorch_model.bin, in one file or shards, with tied weights under two names, give the same result."""
    case = CASES["tied weights and accumulation with a partial window"]
    trained(transformers, tmp_path / "reference", case)
    source = tmp_path / "reference" / "checkpoint-2"
    whole = torch.load(source / "optimizer.pt", weights_only=True)  # noqa: TID251 - what transformers wrote
    assert whole["param_groups"]
    model = transformers.GPT2LMHeadModel.from_pretrained(source)
    (source / "model.safetensors").unlink()
    state = model.state_dict()
    assert {"lm_head.weight", "transformer.wte.weight"} <= state.keys()
    torch.save(state, source / "pytorch_model.bin")  # noqa: TID251 - as transformers wrote it once
    parts = tmp_path / "in_parts"
    shutil.copytree(source, parts)
    (parts / "pytorch_model.bin").unlink()
    names = sorted(state)
    index: dict[str, str] = {}
    for number, half in enumerate((names[::2], names[1::2]), 1):
        file = f"pytorch_model-0000{number}-of-00002.bin"
        torch.save({name: state[name] for name in half}, parts / file)  # noqa: TID251 - as transformers wrote it once
        index |= dict.fromkeys(half, file)
    (parts / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))

    for folder in (source, parts):
        loaded = transformers.GPT2LMHeadModel.from_pretrained(
            imported(folder, tmp_path / f"from_{folder.name}", gradient_accumulation_steps=2)
        )
        assert loaded.lm_head.weight is loaded.transformer.wte.weight
        assert all(torch.equal(loaded.state_dict()[name], state[name]) for name in state)


def test_loss_scale_and_random_states_are_imported(tmp_path: Path) -> None:
    """The fp16 loss scale and the states of the Python, numpy and torch generators are read from its files."""
    import random

    import numpy as np

    from hexloop.app.assembly.torch.transformers_checkpoints.reading import pickled_files
    from tests.end_to_end.small.documents import document_of
    from tests.end_to_end.small.trainers import small_trainer

    small_trainer(tmp_path / "ours", fp16=True, save_strategy="steps", save_steps=2).train()
    folder = hexloop.export_checkpoint(tmp_path / "ours" / "checkpoint-2", tmp_path / "exported")
    again = hexloop.import_checkpoint(folder, tmp_path / "again")

    with pickled_files(folder, ["scaler.pt"]) as pickled:
        scale = pickled.read("scaler.pt")
    assert scale == torch.amp.GradScaler("cpu").state_dict() | scale
    ours, back = tmp_path / "ours" / "checkpoint-2", Path(again)
    for name in ("scaler", "random"):
        assert document_of(ours, name) == document_of(back, name), name
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    resumed = small_trainer(tmp_path / "resumed", fp16=True)
    resumed.train(resume_from_checkpoint=again)
    whole = small_trainer(tmp_path / "whole", fp16=True)
    whole.train()
    assert losses(resumed)[-2:] == losses(whole)[-2:]


def test_checkpoints_of_both_layouts_are_exported_alike(tmp_path: Path) -> None:
    """A checkpoint with a file for each document, as in hexloop 0.1, is shown and exported like one with all in one."""
    from hexloop.app.command_line import main
    from tests.end_to_end.small.documents import split
    from tests.end_to_end.small.trainers import small_trainer

    small_trainer(tmp_path / "ours", fp16=True, save_strategy="steps", save_steps=2).train()
    checkpoint = tmp_path / "ours" / "checkpoint-2"
    exported = [Path(hexloop.export_checkpoint(checkpoint, tmp_path / "together"))]
    split(checkpoint)
    exported.append(Path(hexloop.export_checkpoint(checkpoint, tmp_path / "apart")))
    files = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in exported]

    assert {"optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth"} <= files[0].keys()
    assert files[0] == files[1]
    assert main(["checkpoints", "verify", str(checkpoint)]) == 0
    assert main(["checkpoints", "show", str(checkpoint), "--tensors"]) == 0


def test_a_transformers_folder_is_not_resumed_automatically(tmp_path: Path) -> None:
    """The error names the command that imports it, and nothing is loaded."""
    case = CASES["AdamW with one kind of parameters"]
    trained(transformers, tmp_path, case)
    folder = str(tmp_path / "checkpoint-3")
    with pytest.raises(CheckpointError, match=f"hexloop checkpoints import {folder} --to OUTPUT_DIR"):
        trained(hexloop, tmp_path / "ours", case, folder)


def test_the_command_line_moves_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`export` and `import` print where they wrote; after a round trip, a run resumes exactly."""
    case = CASES["AdamW with one kind of parameters"]
    ours = trained(hexloop, tmp_path / "ours", case)
    assert (
        main(["checkpoints", "export", str(tmp_path / "ours" / "checkpoint-3"), "--to", str(tmp_path / "there")]) == 0
    )
    assert (
        main(
            [
                "checkpoints",
                "import",
                str(tmp_path / "there" / "checkpoint-3"),
                "--to",
                str(tmp_path / "back"),
                "--seed",
                "0",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert f"Written: {tmp_path / 'there' / 'checkpoint-3'}\n" in shown
    assert "  optimizer.pt: from optimizer.safetensors, and optimizer in run_state.json\n" in shown
    assert "  scheduler.pt: from " in shown
    assert "  rng_state.pth: from " in shown
    assert f"hexloop train RECIPE --resume {tmp_path / 'back' / 'checkpoint-3'}\n" in shown
    assert_same_run(trained(hexloop, tmp_path / "again", case, str(tmp_path / "back" / "checkpoint-3")), ours)


def test_import_and_export_overwrite_nothing(tmp_path: Path) -> None:
    """Both refuse a folder that already contains a checkpoint of that step."""
    case = CASES["AdamW with one kind of parameters"]
    trained(hexloop, tmp_path / "ours", case)
    for move, folder in ((hexloop.export_checkpoint, "there"), (hexloop.import_checkpoint, "back")):
        source = tmp_path / ("ours" if folder == "there" else "there") / "checkpoint-3"
        move(source, tmp_path / folder)
        with pytest.raises(CheckpointError, match="choose another folder"):
            move(source, tmp_path / folder)
    assert sorted(os.listdir(tmp_path / "there")) == ["checkpoint-3"]


def test_moments_of_another_model_are_refused(tmp_path: Path) -> None:
    """Parameters in another order than transformers' indices are detected by their shapes."""
    case = CASES["momentum"]
    ours = trained(transformers, tmp_path / "reference", case)
    source = tmp_path / "reference" / "checkpoint-3"
    kept = torch.load(source / "optimizer.pt", weights_only=True)  # noqa: TID251 - what transformers wrote
    first, second = deepcopy(kept["state"][0]), deepcopy(kept["state"][1])
    assert first["momentum_buffer"].shape != second["momentum_buffer"].shape
    kept["state"][0], kept["state"][1] = second, first
    torch.save(kept, source / "optimizer.pt")  # noqa: TID251 - as transformers would have written it
    folder = imported(source, tmp_path / "imported")
    with pytest.raises(CheckpointError, match="are in a different order"):
        trained(hexloop, tmp_path / "ours", case, folder)
    assert isinstance(ours.model, nn.Module)


def test_a_checkpoint_of_sagemakers_model_parallelism_is_refused(tmp_path: Path) -> None:
    """Its files hold a part of the model each; the file that it has besides tells."""
    trained(transformers, tmp_path / "reference", CASES["momentum"])
    source = tmp_path / "reference" / "checkpoint-3"
    (source / "user_content.pt").touch()
    with pytest.raises(CheckpointError, match=r"SageMaker's model parallelism wrote it.* it has user_content\.pt"):
        imported(source, tmp_path / "imported")


def test_a_checkpoint_of_an_early_release_needs_its_batch_size(tmp_path: Path) -> None:
    """Its state does not contain it; where it does, a different value is refused."""
    case = CASES["momentum"]
    reference = trained(transformers, tmp_path / "reference", case)
    source = tmp_path / "reference" / "checkpoint-3"
    with pytest.raises(CheckpointError, match=r"train_batch_size=5, but trainer_state.json has 4; leave it out"):
        imported(source, tmp_path / "other", train_batch_size=5)
    path = source / "trainer_state.json"
    state = json.loads(path.read_text())
    for name in (
        "train_batch_size",
        "best_global_step",
        "stateful_callbacks",
        "logging_steps",
        "num_input_tokens_seen",
    ):
        del state[name]
    path.write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match="set train_batch_size"):
        imported(source, tmp_path / "untold")
    folder = imported(source, tmp_path / "imported", train_batch_size=4)
    ours = trained(hexloop, tmp_path / "ours", case, folder)
    assert_same_run(ours, reference)


def test_a_checkpoint_is_no_larger_than_in_transformers(tmp_path: Path) -> None:
    """At most one percent larger, plus 64 KB for data that are text here and binary there."""
    config = transformers.GPT2Config(vocab_size=512, n_positions=64, n_embd=128, n_layer=4, n_head=4)
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(4)]
    sizes = {}
    for library in (transformers, hexloop):
        folder = tmp_path / library.__name__
        arguments = {**BOTH, "max_steps": 1, "save_strategy": "steps", "save_steps": 1, "weight_decay": 0.01}
        trainer: Any = library.Trainer(
            model=transformers.GPT2LMHeadModel(config),
            args=library.TrainingArguments(output_dir=str(folder), **arguments),
            train_dataset=data,
        )
        trainer.remove_callback(library.PrinterCallback)
        trainer.train()
        sizes[library] = sum(path.stat().st_size for path in (folder / "checkpoint-1").rglob("*") if path.is_file())
    assert sizes[transformers] > 10_000_000
    assert sizes[hexloop] <= 1.01 * sizes[transformers] + 64 * 1024
    print(sizes)
