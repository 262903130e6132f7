"""Training in fp8 by torchao, emulated on the CPU: checkpoints, evaluations, compilation, and what is refused."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hexloop import CheckpointError, ConfigurationError, Trainer
from hexloop.testing import assert_resume_exact
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import arguments, history, same_weights, small_trainer, weights
from tests.unit.precision.models import wide

pytest.importorskip("torchao")

EMULATED: dict[str, Any] = {"backend": "torchao", "emulate": True}


def trainer_in_8_bits(folder: Path, **given: Any) -> Any:
    """Return a Trainer of the model with layers of 32 x 32."""
    parts = {"model": wide(), "eval_dataset": rows(8, seed=1)}
    return small_trainer(folder, parts=parts, **{"fp8": EMULATED, "num_train_epochs": 3, **given})


def losses_of(trainer: Any) -> list[float]:
    """Return the logged losses."""
    return [float(entry["loss"]) for entry in history(trainer) if "loss" in entry]


def test_it_trains_as_in_higher_precision_and_differs(tmp_path: Path) -> None:
    """Twelve steps: losses are within a few percent of those in bf16, and are not the same."""
    fp8, bf16 = trainer_in_8_bits(tmp_path), trainer_in_8_bits(tmp_path, fp8=None, bf16=True)
    for each in (fp8, bf16):
        each.train()
    losses = [losses_of(each) for each in (fp8, bf16)]
    assert losses[0] == pytest.approx(losses[1], rel=0.1, abs=0.02)
    assert losses[0] != losses[1]
    assert min(losses[0][6:]) < losses[0][0] / 2, "it learned nothing, so nothing was compared"
    assert fp8.adapters.precision.name == fp8.accelerator.mixed_precision == "fp8"
    assert all(parameter.dtype == torch.float32 for parameter in fp8.model.parameters())


def resumed_job(folder: str) -> Trainer:
    """Return a Trainer with dropout, accumulation and moments, as it is made in another process, too."""
    given = arguments(
        Path(folder), fp8=EMULATED, num_train_epochs=2, gradient_accumulation_steps=2, weight_decay=0.1,
        save_strategy="steps", save_steps=1,
    )  # fmt: skip
    return Trainer(wide(dropout=0.2), given, train_dataset=rows(16), loggers=[])


@pytest.mark.matrix
def test_a_run_resumes_exactly() -> None:
    """Bitwise, in a new process."""
    assert_resume_exact(resumed_job, stops=[2], fresh_process=True)


def test_a_checkpoint_holds_plain_weights(tmp_path: Path) -> None:
    """The files have the names and the types of the user's model, and load without torchao."""
    trainer = trainer_in_8_bits(tmp_path, save_strategy="steps", save_steps=6)
    trainer.train()
    held = load_file(tmp_path / "checkpoint-12" / "model.safetensors")
    assert held.keys() == wide().state_dict().keys()
    assert all(value.dtype == torch.float32 for value in held.values())
    assert same_weights(held, weights(trainer))
    program = (
        "import sys; sys.modules['torchao'] = None\n"
        "from safetensors.torch import load_file\n"
        "from tests.unit.precision.models import wide\n"
        "model = wide(); model.load_state_dict(load_file(sys.argv[1])); print(type(model.inner[0]).__name__)\n"
    )
    path = str(tmp_path / "checkpoint-12" / "model.safetensors")
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert done.stdout == "Linear\n"
    saved = json.loads((tmp_path / "checkpoint-12" / "training_args.json").read_text())
    assert saved["fp8"] == EMULATED
    other = trainer_in_8_bits(tmp_path, fp8=None, bf16=True, num_train_epochs=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its last bits may differ
        with pytest.raises(CheckpointError, match="precision fp8, and this run has bf16"):
            other.train(resume_from_checkpoint=True)


def test_evaluations_compute_in_8_bits_too(tmp_path: Path) -> None:
    """At the end of a run, after it, and by another Trainer with its weights; results are in float32."""
    trainer = trainer_in_8_bits(tmp_path, eval_strategy="epoch")
    trainer.train()
    within = [entry["eval_loss"] for entry in history(trainer) if "eval_loss" in entry][-1]
    assert trainer.evaluate()["eval_loss"] == within
    other = trainer_in_8_bits(tmp_path)
    other.model.load_state_dict(trainer.model.state_dict())
    assert other.evaluate()["eval_loss"] == within
    assert other.predict(rows(4)).predictions.dtype == "float32"
    plain = trainer_in_8_bits(tmp_path, fp8=None, bf16=True)
    plain.model.load_state_dict(trainer.model.state_dict())
    assert plain.evaluate()["eval_loss"] == pytest.approx(within, rel=0.1)
    assert plain.evaluate()["eval_loss"] != within


def test_a_compiled_run_is_the_same(tmp_path: Path) -> None:
    """With a backend that traces forward and backward, and computes as without compilation."""
    plain, compiled = trainer_in_8_bits(tmp_path), trainer_in_8_bits(tmp_path, torch_compile_backend="aot_eager")
    for each in (plain, compiled):
        each.train()
    ours, theirs = (losses_of(each) for each in (plain, compiled))
    assert theirs == pytest.approx(ours, rel=1e-3)


def test_a_second_run_of_a_trainer(tmp_path: Path) -> None:
    """The layers are converted once, and hooks of the user stay on them."""
    trainer, seen = trainer_in_8_bits(tmp_path, num_train_epochs=1), list[int]()
    trainer.model.inner[0].register_forward_hook(lambda *_: seen.append(1))
    trainer.train()
    layers = list(trainer.model.modules())
    trainer.train()
    assert list(trainer.model.modules()) == layers
    assert len(seen) == 8


def test_a_recipe_of_accelerate(tmp_path: Path) -> None:
    """Its configuration and its choice of layers are used, and accelerate's Accelerator gets them, too."""
    from accelerate.utils import AORecipeKwargs
    from torchao.float8 import Float8LinearConfig

    recipe = AORecipeKwargs(
        config=Float8LinearConfig(emulate=True, round_scales_to_power_of_2=True),
        module_filter_func=lambda module, name: name == "inner.3",
    )
    trainer = trainer_in_8_bits(tmp_path, fp8=recipe)
    trainer.train()
    kinds = [type(layer).__name__ for layer in trainer.model.inner if isinstance(layer, nn.Linear)]
    assert kinds == ["Linear", "Float8Linear"]
    real = trainer.accelerator.real
    assert real.mixed_precision == "fp8"
    assert real.ao_recipe_handler.config.round_scales_to_power_of_2
    assert real.ao_recipe_handler.module_filter_func is recipe.module_filter_func


class WithRecipe(Trainer):
    """Passes accelerate's recipe where accelerate takes it."""

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        from accelerate.utils import AORecipeKwargs

        built = super()._build_accelerator_args(**kwargs)
        return {**built, "kwargs_handlers": [AORecipeKwargs()], "mixed_precision": "fp8"}


def test_a_recipe_that_the_run_would_not_follow(tmp_path: Path) -> None:
    """It is refused with the argument that takes it, in an override and in an assigned Accelerator."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import AORecipeKwargs

    with pytest.raises(ConfigurationError, match="for a recipe of fp8, set fp8 to it"):
        small_trainer(tmp_path, WithRecipe)
    trainer = trainer_in_8_bits(tmp_path, fp8=None)
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        other = Accelerator(cpu=True, mixed_precision="fp8", kwargs_handlers=[AORecipeKwargs()])
        with pytest.raises(ConfigurationError, match="for fp8, set fp8 there, which also takes its recipe"):
            trainer.accelerator = other
        trainer = trainer_in_8_bits(tmp_path)
        trainer.accelerator = other
        trainer.train()
        assert trainer.accelerator.real is other
        with pytest.raises(ConfigurationError, match="its recipe for fp8 is another one than the run's"):
            trainer_in_8_bits(tmp_path, fp8={**EMULATED, "recipe": "rowwise"}).accelerator = other
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_emulation_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run that does not ask for it gets one warning."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        trainer_in_8_bits(tmp_path, num_train_epochs=1).train()
        assert "emulated" not in caplog.text
        trainer = trainer_in_8_bits(tmp_path, fp8=True, num_train_epochs=1)
        trainer.train()
        trainer.evaluate()
    assert caplog.text.count("fp8 is emulated on the device cpu") == 1


def refusals(folder: Path, **given: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        trainer_in_8_bits(folder, **given)
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"fp8": {"backend": "torchao", "emulate": False}}, "the device cpu has no products of 8 bits; NVIDIA's GPUs"),
        ({"reproduce": "transformers"}, "transformers leaves fp8 to accelerate, whose numbers are not reproduced"),
        ({"deepspeed": {"zero_optimization": {"stage": 2}}}, "the precision fp8 with DeepSpeed"),
    ],
    ids=["a CPU that does not emulate", "numbers of transformers", "DeepSpeed"],
)
def test_combinations_that_are_refused(given: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    """Before the first step, with the reason."""
    if "deepspeed" in given:
        pytest.importorskip("deepspeed")
    assert wanted in refusals(tmp_path, **given)


def test_a_missing_package_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "torchao", None)
    assert "the package torchao is not installed; run `pip install 'torchao" in refusals(tmp_path, fp8="torchao")


def test_a_model_without_layers_for_it_is_refused(tmp_path: Path) -> None:
    """Before the first step."""
    trainer = small_trainer(tmp_path, parts={"model": net()}, fp8=EMULATED)
    with pytest.raises(ConfigurationError, match=r"You chose fp8, but Net has no layer for it\. Of its 2 layers"):
        trainer.train()


class Seeing(nn.Module):
    """Records the types that reach a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.types = wide(), list[torch.dtype]()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        self.types.append(self.model.first(x).dtype)
        return self.model(x, labels)


def test_the_variables_of_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`accelerate launch --mixed_precision fp8 --fp8_backend ao` trains in fp8; around it, layers compute in bf16."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    monkeypatch.setenv("ACCELERATE_FP8_BACKEND", "AO")
    monkeypatch.setenv("ACCELERATE_FP8_PAD_INNER_DIM", "false")
    trainer = small_trainer(tmp_path, parts={"model": Seeing()})
    trainer.train()
    assert trainer.adapters.precision.name == "fp8"
    assert set(trainer.model.types) == {torch.bfloat16}
    assert not trainer.model.model.inner[0].config.pad_inner_dim
    monkeypatch.setenv("ACCELERATE_FP8_BACKEND", "MSAMP")
    with pytest.raises(ConfigurationError, match="MS-AMP is no longer maintained, and accelerate has deprecated it"):
        small_trainer(tmp_path)
