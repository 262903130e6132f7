"""Devices, precision, memory, compilation, random numbers, and debugging."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from hexloop.adapters.device.torch import CpuDevice
from hexloop.domain.errors import NotFiniteError
from hexloop.testing import SimulatedDevice
from tests.end_to_end.arguments.bench import Bench, Recording, shows
from tests.end_to_end.small.decoders import llama, sentences
from tests.end_to_end.small.models import net
from tests.end_to_end.small.recording import RecordingCpu
from tests.end_to_end.small.trainers import same_weights, weights
from tests.unit.precision.models import wide


@shows("use_cpu")
def _(bench: Bench) -> None:
    bench.patch.setenv("ACCELERATE_TORCH_DEVICE", "meta")
    assert bench.trainer(use_cpu=True).model.layers[0].weight.device.type == "cpu"
    assert "device meta cannot be used" in bench.refusal(use_cpu=False)


@shows("bf16")
def _(bench: Bench) -> None:
    model = Recording()
    bench.trained({"model": model}, bf16=True)
    assert set(model.types) == {torch.bfloat16}
    assert model.inner.layers[0].weight.dtype == torch.float32


@shows("fp16")
def _(bench: Bench) -> None:
    model = Recording()
    bench.trained({"model": model}, fp16=True)
    assert set(model.types) == {torch.float16}
    assert "the precision fp16, but the device simulated computes in fp32 only" in bench.refusal(
        {"device": SimulatedDevice()}, fp16=True
    )


@shows("fp8")
def _(bench: Bench) -> None:
    if importlib.util.find_spec("torchao") is None:
        assert "the package torchao is not installed" in bench.refusal(fp8="torchao")
        return
    model = wide()
    bench.trained({"model": model}, fp8={"backend": "torchao", "emulate": True})
    assert type(model.inner[0]).__name__ == "Float8Linear"
    assert "Recording has no layer for it" in bench.refusal({"model": Recording()}, fp8="torchao")


def _types_in_evaluation(bench: Bench, **given: Any) -> set[Any]:
    """Return the dtypes of the weights during an evaluation."""
    seen: set[Any] = set()

    class Seeing(Recording):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            weight = self.inner.layers[0].weight
            seen.add(weight.dtype)
            return super().forward(x.to(next(self.parameters()).dtype), labels)

    bench.trainer({"model": Seeing()}, **given).evaluate()
    return seen


@shows("bf16_full_eval")
def _(bench: Bench) -> None:
    assert _types_in_evaluation(bench, bf16_full_eval=True) == {torch.bfloat16}
    assert _types_in_evaluation(bench) == {torch.float32}


@shows("fp16_full_eval")
def _(bench: Bench) -> None:
    assert _types_in_evaluation(bench, fp16_full_eval=True) == {torch.float16}
    assert "fp16_full_eval=True, but the device simulated" in bench.refusal(
        {"device": SimulatedDevice()}, fp16_full_eval=True
    )


@shows("tf32")
def _(bench: Bench) -> None:
    assert "the precision tf32, but the device cpu computes in bf16, fp16, fp32 only" in bench.refusal(tf32=True)
    bench.trainer({"device": SimulatedDevice(precisions=("fp32", "tf32"))}, tf32=True)


def _gpt() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2))


def _sentences() -> list[dict[str, Tensor]]:
    tokens = torch.arange(24).reshape(4, 6) % 11
    return [{"input_ids": one, "labels": one} for one in tokens]


def _asked_of_the_model(bench: Bench, **given: Any) -> list[Any]:
    """Return the activation-checkpointing setting of a transformers model."""
    model, asked = _gpt(), list[Any]()
    bench.patch.setattr(
        model,
        "gradient_checkpointing_enable",
        lambda gradient_checkpointing_kwargs=None, **_: asked.append(gradient_checkpointing_kwargs),
    )
    bench.trained({"model": model, "train_dataset": _sentences()}, **given)
    return asked


@shows("activation_checkpointing", "activation_checkpointing_kwargs")
def _(bench: Bench) -> None:
    given: dict[str, Any] = {"activation_checkpointing_kwargs": {"use_reentrant": False}}
    assert _asked_of_the_model(bench, activation_checkpointing=True, **given) == [{"use_reentrant": False}]
    assert _asked_of_the_model(bench) == []


@shows("gradient_checkpointing", "gradient_checkpointing_kwargs")
def _(bench: Bench) -> None:
    given: dict[str, Any] = {"gradient_checkpointing_kwargs": {"use_reentrant": True}}
    assert _asked_of_the_model(bench, gradient_checkpointing=True, **given) == [{"use_reentrant": True}]


@shows("use_cache")
def _(bench: Bench) -> None:
    for wanted in (True, False):
        model = _gpt()
        bench.trained({"model": model, "train_dataset": _sentences()}, use_cache=wanted)
        assert model.config.use_cache is wanted


@shows("torch_empty_cache_steps")
def _(bench: Bench) -> None:
    released: list[int] = []

    class Releasing(CpuDevice):
        def release_memory(self) -> None:
            released.append(1)

    bench.trained({"device": Releasing()}, torch_empty_cache_steps=2)
    assert len(released) == 2


@shows("skip_memory_metrics")
def _(bench: Bench) -> None:
    assert "eval_mem_cpu_alloc_delta" in bench.trainer(skip_memory_metrics=False).evaluate()
    assert "eval_mem_cpu_alloc_delta" not in bench.trainer().evaluate()


@shows("torch_compile", "torch_compile_backend", "torch_compile_mode")
def _(bench: Bench) -> None:
    asked: list[dict[str, Any]] = []

    def compiled(module: nn.Module, *_: Any, **options: Any) -> nn.Module:
        asked.append(options)
        return module

    bench.patch.setattr(torch, "compile", compiled)
    bench.patch.setattr(nn.Module, "compile", lambda module, *_, **options: compiled(module, **options))
    bench.trained()
    assert asked == []
    bench.trained(torch_compile=True)
    bench.trained(torch_compile_backend="eager")
    bench.trained(torch_compile_mode="max-autotune")
    assert [(each["backend"], each.get("mode")) for each in asked] == [
        ("inductor", None),
        ("eager", None),
        ("inductor", "max-autotune"),
    ]


@shows("capture_step")
def _(bench: Bench) -> None:
    device = RecordingCpu()
    found = bench.weights({"device": device}, capture_step=True, optim="adamw_torch_fused", num_train_epochs=3)
    assert device.replayed > 0
    assert same_weights(found, bench.weights(optim="adamw_torch_fused", num_train_epochs=3))
    assert "capture_step=True on the device cpu, but it cannot record operations" in bench.refusal(capture_step=True)


@shows("chunked_loss", "loss_type")
def _(bench: Bench) -> None:
    def losses(**given: Any) -> list[float]:
        parts = {"model": llama(), "train_dataset": sentences(8)}
        return [loss for _, loss in bench.logged("loss", parts, **given)]

    assert losses(chunked_loss=True) == pytest.approx(losses(), rel=1e-6)
    assert losses(loss_type="chunked_nll") == losses(chunked_loss=True)
    assert all(weighted < loss for weighted, loss in zip(losses(loss_type="dft"), losses(), strict=True))
    assert "Net has neither get_output_embeddings() nor lm_head" in bench.refusal({"model": net()}, chunked_loss=True)


@shows("param_groups")
def _(bench: Bench) -> None:
    faster = [{"params": "layers.3", "learning_rate_factor": 2, "name": "last"}]
    ((_, rate), *_) = bench.logged("learning_rate", param_groups=faster)
    ((_, own), *_) = bench.logged("learning_rate/last", param_groups=faster)
    assert own == 2 * rate
    assert not same_weights(bench.weights(param_groups=faster), bench.weights())
    assert "matches no parameter of the model" in bench.refusal(param_groups=[{"params": "layer.9"}])


@shows("use_liger_kernel")
def _(bench: Bench) -> None:
    if importlib.util.find_spec("liger_kernel") is not None:
        pytest.skip("liger-kernel is installed, and needs a GPU")
    assert "use_liger_kernel=True needs the package liger-kernel, which is not installed" in bench.refusal(
        {"model": _gpt(), "train_dataset": _sentences()}, use_liger_kernel=True
    )


@shows("liger_kernel_config")
def _(bench: Bench) -> None:
    assert "use_liger_kernel is not set" in bench.remark(liger_kernel_config={"rope": True})


@shows("seed")
def _(bench: Bench) -> None:
    assert same_weights(bench.weights(seed=1), bench.weights(seed=1))
    assert not same_weights(bench.weights(seed=1), bench.weights(seed=2))


@shows("full_determinism")
def _(bench: Bench) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    during: list[bool] = []

    class Asking(Recording):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            during.append(torch.are_deterministic_algorithms_enabled())
            return super().forward(x, labels)

    try:
        bench.trained({"model": Asking()}, full_determinism=True)
    finally:
        torch.use_deterministic_algorithms(before)
    assert during == [True] * 4


@shows("debug")
def _(bench: Bench) -> None:
    model = bench.trainer().model
    with torch.no_grad():
        model.layers[0].weight.fill_(float("inf"))
    with pytest.raises(NotFiniteError, match=r"layers\.0"):
        bench.trained({"model": model}, debug="underflow_overflow")
    assert weights(bench.trainer()).keys() == weights(bench.trained(debug="")).keys()


@shows("local_rank")
def _(bench: Bench) -> None:
    assert "for runs with several processes" in bench.remark(local_rank=0)
    assert "local_rank=1, but no launcher has set the number of processes" in bench.refusal(local_rank=1)


@shows(
    "ddp_backend",
    "ddp_timeout",
    "ddp_find_unused_parameters",
    "ddp_bucket_cap_mb",
    "ddp_broadcast_buffers",
    "ddp_static_graph",
)
def _(bench: Bench) -> None:
    given = {
        "ddp_backend": "gloo",
        "ddp_timeout": 60,
        "rendezvous_timeout": 90.0,
        "ddp_find_unused_parameters": True,
        "ddp_bucket_cap_mb": 25,
        "ddp_broadcast_buffers": False,
        "ddp_static_graph": True,
    }
    for name, value in given.items():
        assert bench.remark(**{name: value}).startswith(f"You chose {name}={value!r}, which has no effect here: it is")


@shows("accelerator_config")
def _(bench: Bench) -> None:
    accumulating = {"gradient_accumulation_kwargs": {"num_steps": 2}}
    assert bench.trained(accelerator_config=accumulating).state.global_step == 2
    assert "for runs with several processes" in bench.remark(accelerator_config={"even_batches": False})


@shows("fsdp", "fsdp_config")
def _(bench: Bench) -> None:
    assert "You chose FSDP" in bench.refusal(fsdp="full_shard auto_wrap")
    assert "it configures the engine fsdp, which is not used" in bench.remark(fsdp_config={"version": 2})
    bench.trained(fsdp="")


@shows("deepspeed")
def _(bench: Bench) -> None:
    refused = bench.refusal(deepspeed={"zero_optimization": {"stage": 2}, "gradient_clipping": 0.25})
    assert "You chose gradient_clipping=0.25 in DeepSpeed's configuration" in refused


class ParallelismConfig:
    """Has the name of accelerate's."""

    def to_json(self) -> dict[str, int]:
        return {"tp_size": 2}


@shows("parallelism_config")
def _(bench: Bench) -> None:
    assert "You chose multi-dimensional device meshes" in bench.refusal(parallelism_config=ParallelismConfig())
