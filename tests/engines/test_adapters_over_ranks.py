"""Adapters of PEFT are trained in two real processes by every engine, saved as one file, and resumed exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.end_to_end.small.adapters import logits_of, tiny_llama
from tests.engines.processes import QUIET, run_ranks

peft = pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings("ignore")

ENGINES: dict[str, dict[str, Any]] = {
    "DDP": {},
    "FSDP 1": {"fsdp": "full_shard", "fsdp_config": {"version": 1}},
    "FSDP 2": {"fsdp": "full_shard", "fsdp_config": {"version": 2}},
    "ZeRO 2": {"deepspeed": {"zero_optimization": {"stage": 2}}},
    "ZeRO 3": {"deepspeed": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}},
}
"""The arguments that choose each engine."""

WHOLE = "LoRA of all linear layers, with modules_to_save"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a base."""
    folder = tmp_path_factory.mktemp("base")
    tiny_llama(hidden_size=64, intermediate_size=128).save_pretrained(folder)
    return folder


def run(processes: int, *phases: dict[str, Any]) -> list[dict[str, Any]]:
    """Run phases in so many processes, and return their reports."""
    words = ("-m", "tests.engines.adapters_worker", json.dumps(phases))
    run_ranks(processes, *words, folder=Path(phases[0]["output"]).parent, variables=QUIET)
    return [json.loads(Path(phase["output"], "report.json").read_text()) for phase in phases]


def phase(kind: str, base: Path, output: Path, resume: Path | None = None, **arguments: Any) -> dict[str, Any]:
    """Return a phase of a job."""
    described = {"kind": kind, "base": str(base), "output": str(output), "arguments": arguments}
    return described if resume is None else {**described, "resume": str(resume)}


def saved(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of an adapter."""
    return load_file(folder / "adapter_model.safetensors")


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of two adapters."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one if one[name].numel())


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ENGINES)
def test_adapters_are_saved_alone_and_resume(engine: str, base: Path, tmp_path: Path) -> None:
    """One file has the adapter, whatever is sharded; both the same engine and one process resume from it."""
    given = ENGINES[engine]
    one, two, again = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    (alone,) = run(1, phase(WHOLE, base, one, per_device_train_batch_size=8))
    both, resumed = run(
        2, phase(WHOLE, base, two, **given), phase(WHOLE, base, again, resume=two / "checkpoint-2", **given)
    )
    assert both["world"] == 2
    assert both["losses"] == pytest.approx(alone["losses"], abs=1e-4)
    assert resumed["losses"][-2:] == both["losses"][-2:]

    names = {path.name for path in (two / "checkpoint-2").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= names
    assert not any(name.startswith(("model", "adapter_state")) for name in names)
    assert distance(saved(two / "checkpoint-6"), saved(again / "checkpoint-6")) == 0.0
    assert distance(saved(two / "checkpoint-6"), saved(two / "final")) == 0.0
    assert distance(saved(two / "checkpoint-6"), saved(one / "checkpoint-6")) < 1e-3
    bases = [
        json.loads((folder / "checkpoint-2" / "run_state.json").read_text())["run_setup"]["base"]
        for folder in (one, two)
    ]
    assert bases[0] == bases[1]
    assert bases[0]["digest"] is not None

    loaded = peft.PeftModel.from_pretrained(tiny_llama(base), two / "final")
    assert bool(torch.isfinite(logits_of(loaded)).all())
    (elsewhere,) = run(
        1, phase(WHOLE, base, tmp_path / "4", resume=two / "checkpoint-2", per_device_train_batch_size=8)
    )
    assert elsewhere["losses"][-2:] == pytest.approx(both["losses"][-2:], abs=1e-4)


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ["FSDP 2", "ZeRO 3"])
def test_another_base_is_refused_if_it_is_sharded(engine: str, base: Path, tmp_path: Path) -> None:
    """On every process, with the digests of all tensors."""
    other = tiny_llama(base)
    with torch.no_grad():
        other.model.layers[1].mlp.down_proj.weight[-1, -1] += 1e-3
    other.save_pretrained(tmp_path / "other")
    given = ENGINES[engine]
    _, refused = run(
        2,
        phase("LoRA", base, tmp_path / "1", **given),
        phase("LoRA", tmp_path / "other", tmp_path / "2", resume=tmp_path / "1" / "checkpoint-2", **given),
    )
    assert "its adapters were trained on the base" in refused["error"]
    assert str(tmp_path / "other") in refused["error"]


REFUSED: dict[str, tuple[str, str, str]] = {
    "prompts under FSDP 2": ("prompt tuning", "FSDP 2", "holds what is computed from its weights"),
    "AdaLoRA under FSDP 2": ("AdaLoRA", "FSDP 2", "AdaLoRA cannot be trained with the parallelism fsdp2"),
    "AdaLoRA under ZeRO 2": ("AdaLoRA", "ZeRO 2", "AdaLoRA cannot be trained with the parallelism deepspeed"),
    "4 bits under ZeRO 3": ("4 bits", "ZeRO 3", "ZeRO 3 cannot divide the quantized weights"),
    "4 bits under FSDP 2": ("4 bits", "FSDP 2", "FSDP cannot divide the quantized weights"),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", REFUSED)
def test_what_an_engine_cannot_do_is_refused(name: str, base: Path, tmp_path: Path) -> None:
    """The message says what to choose instead."""
    kind, engine, words = REFUSED[name]
    (refused,) = run(2, phase(kind, base, tmp_path, **ENGINES[engine]))
    assert words in refused["error"]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("kind", "engine"), [("AdaLoRA", "DDP"), ("prompt tuning", "ZeRO 2"), ("4 bits", "DDP"), ("4 bits", "ZeRO 2")]
)
def test_further_kinds_match_one_process(kind: str, engine: str, base: Path, tmp_path: Path) -> None:
    """AdaLoRA decides on the same ranks in every process; prompts and quantized bases need no special engine."""
    (alone,) = run(1, phase(kind, base, tmp_path / "1", per_device_train_batch_size=8))
    both, resumed = run(
        2,
        phase(kind, base, tmp_path / "2", **ENGINES[engine]),
        phase(kind, base, tmp_path / "3", resume=tmp_path / "2" / "checkpoint-2", **ENGINES[engine]),
    )
    assert both["losses"] == pytest.approx(alone["losses"], abs=1e-4)
    assert resumed["losses"][-2:] == both["losses"][-2:]
    assert distance(saved(tmp_path / "2" / "checkpoint-6"), saved(tmp_path / "3" / "checkpoint-6")) == 0.0


@pytest.mark.matrix
def test_whole_models_are_saved_if_asked(base: Path, tmp_path: Path) -> None:
    """Each process writes its shard of them, and prompts are trained as well."""
    given = {**ENGINES["FSDP 2"], "save_full_model": True}
    whole, resumed = run(
        2,
        phase("prompt tuning", base, tmp_path / "1", **given),
        phase("prompt tuning", base, tmp_path / "2", resume=tmp_path / "1" / "checkpoint-2", **given),
    )
    assert whole.get("error") is None
    assert (tmp_path / "1" / "checkpoint-2" / "model.safetensors.index.json").exists()
    assert resumed["losses"][-2:] == whole["losses"][-2:]
