"""`hexloop why`: planted differences between two runs are named, with their step, tensor and sample."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve, frozen
from torch import nn

import hexloop
from hexloop.app.assembly.passed_adapters import private_adapters
from hexloop.app.assembly.torch.replaying import RECORDED, record_steps
from hexloop.app.command_line import main
from hexloop.app.command_line.replay import recorded_arguments
from hexloop.domain.why import Cause, Recording, document_of, first_difference, recording_of
from tests.resealing import change_manifest, manifest_entries

SAMPLES, WIDTH, CLASSES, STEPS = 24, 4, 3, 5


class Net(nn.Module):
    """Two layers with dropout, always with the same weights, and a buffer."""

    def __init__(self, dropout: float = 0.1, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.act = nn.Linear(WIDTH, 8), activation or nn.Tanh()
        self.drop, self.second = nn.Dropout(dropout), nn.Linear(8, CLASSES)
        self.register_buffer("scale", torch.ones(1))
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for each in self.parameters():
                each.copy_(torch.randn(each.shape, generator=generator) / 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the logits."""
        return {"logits": self.second(self.drop(self.act(self.first(x)))) * self.scale}


def rows() -> list[dict[str, Any]]:
    """Return the samples."""
    generator = torch.Generator().manual_seed(5)
    return [
        {"x": torch.randn(WIDTH, generator=generator), "labels": torch.tensor(number % CLASSES)}
        for number in range(SAMPLES)
    ]


def cross_entropy(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    """Return the mean loss."""
    return nn.functional.cross_entropy(outputs["logits"], labels)


def smoothed(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    """Return another loss."""
    return nn.functional.cross_entropy(outputs["logits"], labels, label_smoothing=0.1)


def recorded(
    folder: Path,
    model: nn.Module | None = None,
    data: list[dict[str, Any]] | None = None,
    loss: Callable[..., Any] = cross_entropy,
    callbacks: tuple[Any, ...] = (),
    **arguments: Any,
) -> Recording:
    """Return the recording of a run."""
    given = {"seed": 0, "per_device_train_batch_size": 4, "max_steps": STEPS, "weight_decay": 0.01, **arguments}
    args = hexloop.TrainingArguments(str(folder), **{**given, **RECORDED})
    trainer = hexloop.Trainer(
        model or Net(),
        args,
        train_dataset=rows() if data is None else data,
        compute_loss_func=loss,
        callbacks=list(callbacks),
        **private_adapters({}),
    )
    return record_steps(trainer, None, STEPS)


def changed(number: int, **values: torch.Tensor) -> list[dict[str, Any]]:
    """Return the samples with one of them changed."""
    found = rows()
    found[number] = {**found[number], **values}
    return found


def edited(edit: Callable[[Net], object]) -> Net:
    """Return the model with a change."""
    made = Net()
    with torch.no_grad():
        edit(made)
    return made


class At(hexloop.TrainerCallback):
    """Does something to the run at the end of a step, or at its start."""

    def __init__(self, step: int, act: Callable[[Any, Any], object]) -> None:
        self.step, self.act = step, act

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.step == 0:
            self.act(kwargs["model"], kwargs["optimizer"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            with torch.no_grad():
                self.act(kwargs["model"], kwargs["optimizer"])


def plant_moment(model: Any, optimizer: Any) -> None:
    """Give a parameter a moment, as a checkpoint with another one would."""
    weight = model.second.weight
    optimizer.state[weight]["exp_avg"] = torch.ones_like(weight)
    optimizer.state[weight]["exp_avg_sq"] = torch.ones_like(weight)
    optimizer.state[weight]["step"] = torch.tensor(1.0)


def double_rate(_: Any, optimizer: Any) -> None:
    """Double the learning rates."""
    for group in optimizer.param_groups:
        group["lr"] *= 2


def with_hook() -> Net:
    """Return the model with a hook that changes a gradient."""
    made = Net()
    made.second.weight.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]
    return made


def frozen_bias() -> Net:
    """Return the model with one parameter that is not trained."""
    made = Net()
    made.first.bias.requires_grad_(False)
    return made


@frozen
class Plant:
    """A difference. step: None where it depends on the order of the samples."""

    changes: Mapping[str, Any]
    cause: Cause
    name: str
    step: int | None = 1
    values: tuple[str, str] | None = None


PLANTS: dict[str, Callable[[], Plant]] = {
    "seed": lambda: Plant({"seed": 1}, Cause.ORDER, "row 0 of micro-batch 1"),
    "batch order": lambda: Plant({"data_seed": 7}, Cause.ORDER, "row 0 of micro-batch 1"),
    "one argument": lambda: Plant(
        {"weight_decay": 0.1}, Cause.OPTIONS, "weight_decay of parameter group 0", values=("0.01", "0.1")
    ),
    "one sample": lambda: Plant({"data": changed(7, x=torch.zeros(WIDTH))}, Cause.SAMPLES, "x of sample 7,", None),
    "one label": lambda: Plant(
        {"data": changed(11, labels=torch.tensor(0))}, Cause.SAMPLES, "labels of sample 11,", None
    ),
    "one weight at the start": lambda: Plant(
        {"model": edited(lambda net: net.second.weight[1, 2].add_(1e-6))}, Cause.START_WEIGHTS, "second.weight", -1
    ),
    "a buffer at the start": lambda: Plant(
        {"model": edited(lambda net: net.get_buffer("scale").mul_(2))}, Cause.START_WEIGHTS, "scale", -1
    ),
    "learning rate at a step": lambda: Plant(
        {"callbacks": (At(3, double_rate),)}, Cause.LEARNING_RATE, "lr of parameter group 0", 4
    ),
    "dropout": lambda: Plant(
        {"model": Net(dropout=0.4)},
        Cause.MODULE,
        "the output of drop for micro-batch 1",
        values=("Dropout(p=0.1, inplace=False)", "Dropout(p=0.4, inplace=False)"),
    ),
    "code of the model": lambda: Plant(
        {"model": Net(activation=nn.GELU())},
        Cause.MODULE,
        "the output of act",
        values=("Tanh()", "GELU(approximate='none')"),
    ),
    "dtype": lambda: Plant(
        {"bf16": True}, Cause.MODULE, "the output of first", values=("float32 [4, 8]", "bfloat16 [4, 8]")
    ),
    "gradient clipping": lambda: Plant(
        {"max_grad_norm": 0.01}, Cause.CLIPPING, "max_grad_norm", values=("1.0", "0.01")
    ),
    "accumulation": lambda: Plant(
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
        Cause.ACCUMULATION,
        "micro-batches",
        values=("1 of 4 samples", "2 of 2 samples"),
    ),
    "batch size": lambda: Plant({"per_device_train_batch_size": 3}, Cause.SAMPLES, "how many", values=("4", "3")),
    "an optimizer's moment": lambda: Plant(
        {"callbacks": (At(0, plant_moment),)}, Cause.START_OPTIMIZER, "second.weight: exp_avg", -1
    ),
    "the optimizer": lambda: Plant({"optim": "sgd"}, Cause.OPTIONS, "of parameter group 0"),
    "epsilon of Adam": lambda: Plant({"adam_epsilon": 1e-6}, Cause.OPTIONS, "eps of parameter group 0"),
    "code of the loss": lambda: Plant({"loss": smoothed}, Cause.LOSS, "of micro-batch 1"),
    "a draw of random numbers": lambda: Plant(
        {"callbacks": (At(2, lambda *_: torch.rand(1)),)}, Cause.RANDOM, "generators", 3
    ),
    "a hook of a gradient": lambda: Plant({"model": with_hook()}, Cause.GRADIENTS, "second.weight"),
    "a frozen parameter": lambda: Plant({"model": frozen_bias()}, Cause.GRADIENTS, "first.bias"),
    "a weight during the run": lambda: Plant(
        {"callbacks": (At(3, lambda model, _: model.second.bias.add_(1.0)),)}, Cause.WEIGHTS, "second.bias", 3
    ),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The run with which the others are compared."""
    return recorded(tmp_path_factory.mktemp("runs"))


def test_a_run_that_is_repeated_does_not_differ(reference: Recording, tmp_path: Path) -> None:
    assert [each.step for each in reference.steps] == [1, 2, 3, 4, 5]
    assert first_difference(reference, recorded(tmp_path)) is None


def test_a_recording_survives_json(reference: Recording) -> None:
    again = recording_of(json.loads(json.dumps(document_of(reference))))
    assert first_difference(reference, again) is None
    assert document_of(again) == document_of(reference)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_difference_is_named(name: str, reference: Recording, tmp_path: Path) -> None:
    plant = PLANTS[name]()
    found = first_difference(reference, recorded(tmp_path, **plant.changes))
    assert found is not None
    assert found.cause is plant.cause
    assert plant.name in found.name
    if plant.step is not None:
        assert found.step == plant.step
    if plant.values is not None:
        assert found.values == plant.values
    assert found.cause.value in found.sentence()


def test_samples_in_each_others_place_are_an_other_order(reference: Recording, tmp_path: Path) -> None:
    indices = reference.steps[1].batches[0].indices
    assert indices is not None
    data = rows()
    data[indices[0]], data[indices[3]] = data[indices[3]], data[indices[0]]
    found = first_difference(reference, recorded(tmp_path, data=data))
    assert found is not None
    assert (found.cause, found.step) == (Cause.ORDER, 2)
    assert "row 0 of micro-batch 1, whose sample of the first run is row 3" in found.name


def test_a_changed_sample_is_found_at_the_step_that_reads_it(reference: Recording, tmp_path: Path) -> None:
    found = first_difference(reference, recorded(tmp_path, data=changed(7, x=torch.zeros(WIDTH))))
    assert found is not None
    (step,) = {each.step for each in reference.steps for batch in each.batches if 7 in (batch.indices or ())}
    assert found.step == step


def test_the_number_of_processes_comes_first(reference: Recording) -> None:
    found = first_difference(reference, evolve(reference, processes=2, weights={}))
    assert found is not None
    assert (found.cause, found.values) == (Cause.PROCESSES, ("1", "2"))


# The command

MODULE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1))
        self.head = nn.Linear(8, 3)

    def forward(self, x, labels=None):
        logits = self.head(self.inner(x))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows(changed=None):
    generator = torch.Generator().manual_seed(5)
    found = [{"x": torch.randn(4, generator=generator), "labels": n % 3} for n in range(24)]
    if changed is not None:
        found[changed]["labels"] = (found[changed]["labels"] + 1) % 3
    return found
"""

RECIPE = """
model: {{call: {module}.Net}}
train_dataset: {{call: {module}.rows{further}}}
arguments:
  output_dir: {folder}
  seed: 0
  max_steps: 6
  per_device_train_batch_size: 4
  save_strategy: steps
  save_steps: 2
  logging_steps: 2
  journal: steps
"""


@frozen
class Trained:
    """Runs that were trained by recipes, and the step that reads the sample in which the first two differ.

    faster: with the recipe of the first and another learning rate. again: with that recipe, and nothing else.
    """

    first: str
    second: str
    faster: str
    again: str
    recipes: tuple[str, str]
    step: int


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    root = tmp_path_factory.mktemp("trained")
    (root / "why_module.py").write_text(MODULE)
    recipes = []
    for name, further in (("a", ""), ("b", ", changed: 7")):
        recipe = root / f"{name}.yaml"
        recipe.write_text(RECIPE.format(module="why_module", further=further, folder=root / name))
        assert main(["train", str(recipe), "--disable_tqdm", "True"]) == 0
        recipes.append(str(recipe))
    for name, options in (("faster", ["--learning_rate", "0.01"]), ("again", [])):
        command = ["train", recipes[0], "--disable_tqdm", "True", "--output_dir", str(root / name)]
        assert main([*command, *options]) == 0
    notes = [json.loads(line) for line in (root / "a/.hexloop/journal.jsonl").read_text().splitlines()]
    others = [json.loads(line) for line in (root / "b/.hexloop/journal.jsonl").read_text().splitlines()]
    pairs = zip(*([each for each in found if each["kind"] == "step"] for found in (notes, others)), strict=True)
    step = next(one["step"] for one, other in pairs if one["batches"] != other["batches"])
    first, second, faster, again = (str(root / name) for name in ("a", "b", "faster", "again"))
    return Trained(first, second, faster, again, (recipes[0], recipes[1]), step)


def answer(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, Any]:
    """Return the JSON document that a command prints."""
    capsys.readouterr()
    assert main([*command, "--json"]) == 1
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_journals_and_checkpoints_tell_where_to_look(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "why", trained.first, trained.second)
    equal = (trained.step - 1) // 2 * 2
    assert found["checkpoints"]["equal"] == (equal or None)
    assert found["checkpoints"]["different"] == equal + 2
    assert found["journal"][0] == {
        "what": "data", "step": trained.step, "name": "micro-batch 1",
        "equal_until": trained.step - 1 or None,
    }  # fmt: skip
    assert found["finding"] is None
    assert "--recipe" in found["replay"]


@pytest.mark.matrix
def test_repeated_steps_name_the_sample(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = trained.recipes
    command = ["why", trained.first, trained.second, "--recipe", first, "--other-recipe", second]
    found = answer(capsys, *command)
    assert found["finding"] is not None, found["replay"]
    assert found["finding"]["cause"] == "samples"
    assert found["finding"]["step"] == trained.step
    assert found["finding"]["name"].startswith("labels of sample 7,")


@pytest.mark.matrix
def test_a_recipe_that_is_not_the_runs_is_noticed(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "why", trained.first, trained.second, "--recipe", trained.recipes[0])
    assert found["finding"] is None
    assert "does not reproduce" in found["replay"]
    assert f"{trained.second} (" in found["replay"]


def test_equal_runs_are_equal(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", trained.first, trained.again]) == 0
    printed = capsys.readouterr().out
    assert "are equal in everything that both recorded" in printed
    assert "Checkpoints: equal until step 6" in printed


@pytest.mark.matrix
def test_recorded_numbers_take_the_place_of_the_recipes(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "why", trained.first, trained.faster, "--recipe", trained.recipes[0])
    assert found["effective_settings"] == ["learning_rate"]
    assert found["finding"] is not None, found["replay"]
    assert (found["finding"]["cause"], found["finding"]["step"]) == ("learning rate", 1)
    assert found["finding"]["values"] == ["5e-05", "0.01"]


def test_processes_and_versions_are_compared(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained.second, other)
    for checkpoint in other.glob("checkpoint-*"):
        known = manifest_entries(checkpoint)["environment"]
        change_manifest(checkpoint, world_size=2, environment={**known, "torch": "1.0"})
    journal = other / ".hexloop" / "journal.jsonl"
    with journal.open("a") as file:
        for packages in ({"numpy": "1.0"}, {"numpy": "2.0", "tokenizers": "0.1"}):
            file.write(json.dumps({"kind": "information", "time": 1.0, "packages": packages}) + "\n")
    found = answer(capsys, "why", trained.first, str(other), "--recipe", trained.recipes[0])
    assert found["environment"]["processes"] == ["1", "2"]
    assert found["environment"]["torch"] == [torch.__version__, "1.0"]
    assert "only steps of one process are repeated" in found["replay"]
    assert "--per_device_train_batch_size 8 --journal steps" in found["replay"], "4 samples in each of two processes"
    with Path(trained.first, ".hexloop/journal.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "information", "time": 1.0, "packages": {"numpy": "1.9"}}) + "\n")
    found = answer(capsys, "why", trained.first, str(other))
    assert found["environment"]["package numpy"] == ["1.9", "2.0"]
    assert found["environment"]["package tokenizers"] == ["none", "0.1"]


def test_a_missing_run_is_refused(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", trained.first, f"{trained.first}-nowhere", "--recipe", "none.yaml"]) == 2
    printed = capsys.readouterr().err
    assert "no such folder" in printed
    assert "none.yaml" in printed


def test_what_is_not_the_folder_of_a_run_is_refused(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint, another file, a script as a recipe and a URL are each named, with what to give instead."""
    checkpoint, recipe, script = f"{trained.first}/checkpoint-2", trained.recipes[0], Path(trained.first, "train.py")
    script.write_text("raise SystemExit('it ran')\n")
    try:
        assert main(["why", checkpoint, recipe, "--recipe", str(script)]) == 2
    finally:
        script.unlink()
    printed = capsys.readouterr().err
    assert f"it is a checkpoint; name the folder of its run, {trained.first}, or" in printed
    assert f"{recipe}, but it is a file that is not a journal" in printed
    assert f"{script}, but it is a script" in printed
    assert main(["why", trained.first, "s3://bucket/run"]) == 2
    assert "it is not on this machine" in capsys.readouterr().err


def test_a_run_is_named_by_its_journal_or_its_name(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Path(trained.first, ".hexloop/journal.jsonl")
    name = json.loads(journal.read_text().splitlines()[0])["run"]
    for given in (str(journal), f"{trained.first}@{name[:6]}"):
        found = answer(capsys, "why", given, trained.second)
        assert found["checkpoints"]["compared"] == 3
        assert found["journal"][0]["step"] == trained.step


def test_only_numbers_and_known_names_are_taken_from_a_runs_record() -> None:
    args = hexloop.TrainingArguments("runs")
    recorded_by_stranger = {
        "seed": 7,
        "learning_rate": 0.5,
        "optim": "sgd",
        "output_dir": "/etc",
        "fsdp_config": "/etc/passwd",
        "deepspeed": "/tmp/evil.json",
        "optim_args": "module=evil",
        "report_to": "wandb",
        "push_to_hub": True,
        "lr_scheduler_kwargs": {"a": 1},
        "predictions_folder": "/tmp/x",
        "lr_scheduler_type": "../../evil",
        "max_grad_norm": "inf",
    }
    assert recorded_arguments(args, recorded_by_stranger) == {"seed": 7, "learning_rate": 0.5, "optim": "sgd"}


def test_code_in_a_runs_folder_is_not_run(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("why_module.py", "sitecustomize.py", "usercustomize.py"):
        Path(trained.second, name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    first, second = trained.recipes
    try:
        answer(capsys, "why", trained.first, trained.second, "--recipe", first, "--other-recipe", second)
    finally:
        for name in ("why_module.py", "sitecustomize.py", "usercustomize.py"):
            Path(trained.second, name).unlink()
    assert not (tmp_path / "ran").exists()


def test_the_plants_do_not_change_the_reference() -> None:
    first, second = Net(), Net()
    assert all(map(torch.equal, first.state_dict().values(), deepcopy(second).state_dict().values()))
