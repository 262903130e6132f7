"""liger-kernel's layers stand in a model from the construction of its Trainer, and give its loss.

They run in Triton's interpreter, which has to be chosen before Triton is imported: in a process of their own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("liger_kernel") is None or importlib.util.find_spec("triton") is None,
    reason="liger-kernel is not installed",
)

KERNELS = {"rope": True, "cross_entropy": False, "fused_linear_cross_entropy": True, "rms_norm": False, "swiglu": False}
"""Those that Triton's interpreter runs."""


def in_interpreter(check: str) -> None:
    """Run a function of this module in a new process in which Triton interprets its kernels."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)])}
    command = [sys.executable, "-c", f"from tests.end_to_end import test_liger; test_liger.{check}()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("check", ["trains", "patches_at_once", "patches_adapted", "evaluates_without_logits"])
def test_in_the_interpreter(check: str) -> None:
    """See the function of that name."""
    in_interpreter(check)


def trainer(folder: str, model: Any = None, **given: Any) -> Any:
    """Return a Trainer of a small Llama; its kernels are liger-kernel's unless `use_liger_kernel` says otherwise."""
    from tests.end_to_end.small.decoders import llama, sentences
    from tests.end_to_end.small.trainers import small_trainer

    parts = {"train_dataset": sentences(8), "eval_dataset": sentences(5)}
    parts |= {"model_init": given.pop("model_init")} if "model_init" in given else {"model": model or llama()}
    kernels = {"use_liger_kernel": True, "liger_kernel_config": KERNELS}
    return small_trainer(Path(folder), parts=parts, **{**kernels, "max_steps": 2, "optim": "sgd", **given})


def is_patched(model: Any) -> bool:
    """Return whether a model has a forward of liger-kernel's."""
    forward = vars(model).get("forward")
    return forward is not None and forward.__func__.__module__.startswith("liger_kernel")


def trains() -> None:
    """A run has the losses and gradients of the model's own layers."""
    import tempfile

    logs = []
    for kernels in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            made = trainer(folder, use_liger_kernel=kernels, liger_kernel_config=KERNELS if kernels else None)
            made.train()
            logs.append([(entry["loss"], entry["grad_norm"]) for entry in made.state.log_history if "loss" in entry])
    for one, other in zip(*logs, strict=True):
        assert one == pytest.approx(other, rel=1e-4), logs


def patches_at_once() -> None:
    """The constructor patches a model that it receives or makes, and a run one that it makes again."""
    import tempfile

    from tests.end_to_end.small.decoders import llama

    def new_llama() -> Any:
        return llama()

    with tempfile.TemporaryDirectory() as folder:
        assert is_patched(trainer(folder).model)
        made = trainer(folder, model_init=new_llama, max_steps=1)
        first = made.model
        assert is_patched(first)
        made.train()
        made.train()
        assert made.model is not first
        assert is_patched(made.model)
        assert not is_patched(trainer(folder, use_liger_kernel=False, liger_kernel_config=None).model)


def patches_adapted() -> None:
    """What a PEFT model wraps is patched."""
    import tempfile
    import warnings

    if importlib.util.find_spec("peft") is None:
        return
    import peft

    from tests.end_to_end.small.decoders import llama

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(folder, model, max_steps=1)
        assert is_patched(model.get_base_model())
        made.train()
        assert "loss" in made.state.log_history[0]


def evaluates_without_logits() -> None:
    """An evaluation of the loss alone makes no logits, and has the loss of one that does."""
    import tempfile

    from tests.end_to_end.small.decoders import llama

    with tempfile.TemporaryDirectory() as folder:
        model = llama()
        made = trainer(folder, model, prediction_loss_only=True)
        calls: list[int] = []
        model.lm_head.register_forward_hook(lambda *_: calls.append(1))
        alone = made.evaluate()["eval_loss"]
        assert not calls
        made.args.prediction_loss_only = False
        assert made.predict(made.eval_dataset).metrics["test_loss"] == pytest.approx(alone, rel=1e-5)
        assert calls
