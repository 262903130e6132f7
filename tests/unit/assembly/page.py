"""The compatibility page, and the table of devices, generated from the tables that the assembly uses.

`python -m tests.unit.assembly.page` regenerates it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hexloop.adapters.device.torch import CpuDevice
from hexloop.adapters.device.torch.kinds import KINDS, Kind
from hexloop.app.arguments.sequence_to_sequence import Seq2SeqTrainingArguments
from hexloop.app.assembly.adapters import precision_name
from hexloop.app.assembly.combinations import REFUSALS, Refusal, Setting, refusals_of
from hexloop.app.engines import engine_for
from hexloop.app.environment import DistributedEnvironment
from hexloop.ports.device import DeviceCapabilities

PAGE = Path(__file__).parents[3] / "docs" / "combinations.md"

GPU = DeviceCapabilities("cuda", frozenset({"fp32", "tf32", "bf16", "fp16", "fp8"}), captures=True)

DEVICES = Path(__file__).parents[3] / "docs" / "devices.md"

BEGIN, END = "<!-- The table of devices: python -m tests.unit.assembly.page -->\n", "<!-- end -->\n"

STAND_IN = "on a stand-in: a device of torch in C++"

KNOWN: Mapping[str, tuple[str, str, str]] = {
    "cpu": ("CPU", "", "for real, in every test"),
    "cuda": (
        "`cuda`: GPUs of NVIDIA, and of AMD by ROCm",
        "fp32, tf32 (NVIDIA), bf16, fp16, fp8 (from compute capability 8.9, and from the MI300 on)",
        "for real on NVIDIA's, by `make test-gpu`; ROCm has the same names in torch",
    ),
    "mps": ("`mps`: Apple's GPU", "fp32, bf16, fp16", "mapped only"),
    "xla": (
        "`xla`: TPUs",
        "fp32, bf16",
        "for real on the CPU, by `make test-xla`; several processes are [mapped only](#several-processes)",
    ),
    "xpu": ("`xpu`: Intel's GPUs", "those that torch states", STAND_IN),
}
"""What a kind is, its formats if its adapter asks the device, and how it was run. Others ran on the stand-in."""

Chosen = Mapping[str, Any]

FSDP = {"transformer_layer_cls_to_wrap": ["Block"]}

ENGINES: Mapping[str, tuple[int, Chosen]] = {
    "one process": (1, {}),
    "DDP": (2, {}),
    "FSDP 1": (2, {"fsdp": "full_shard", "fsdp_config": {"version": 1, **FSDP}}),
    "FSDP 2": (2, {"fsdp": "full_shard", "fsdp_config": {"version": 2, **FSDP}}),
    "ZeRO 0 to 2": (2, {"deepspeed": {"zero_optimization": {"stage": 2}}}),
    "ZeRO 3": (2, {"deepspeed": {"zero_optimization": {"stage": 3}}}),
}
"""How many processes there are, and which arguments ask for the engine."""

EVALUATING = {"eval_strategy": "steps", "eval_steps": 10, "save_steps": 10}

FEATURES: Mapping[str, Chosen] = {
    "evaluation and metrics": EVALUATING,
    "`load_best_model_at_end`, early stopping": {**EVALUATING, "load_best_model_at_end": True},
    "`bf16_full_eval`, `fp16_full_eval`": {"bf16_full_eval": True},
    "`predict_with_generate`": {"predict_with_generate": True},
    "checkpoints and exact resume": {"save_strategy": "steps"},
    "`auto_find_batch_size`": {"auto_find_batch_size": True},
    "`gradient_accumulation_steps`": {"gradient_accumulation_steps": 4},
    "`gradient_checkpointing`": {"gradient_checkpointing": True},
    "`label_smoothing_factor`": {"label_smoothing_factor": 0.1},
    "`neftune_noise_alpha`": {"neftune_noise_alpha": 5.0},
    "`skip_memory_metrics=False`": {"skip_memory_metrics": False},
    "`journal`": {"journal": "steps"},
    "`bf16`": {"bf16": True},
    "`fp16`": {"fp16": True},
    "`fp8`": {"fp8": "torchao"},
    "`torch_compile`": {"torch_compile": True},
    "`capture_step`": {"capture_step": True},
    "`packing`, `tokens_per_batch`": {"packing": True, "max_length": 2048, "tokens_per_batch": 4096},
    "`padding_free`": {"padding_free": True},
    "`chunked_loss`, `loss_type`": {"chunked_loss": True},
    "`log_token_accuracy`": {"log_token_accuracy": True},
    "AdamW, SGD and the like": {"optim": "adamw_torch"},
    "Adafactor": {"optim": "adafactor"},
    "StableAdamW": {"optim": "stable_adamw"},
    "schedule-free optimizers": {"optim": "schedule_free_adamw"},
    "`ema_decay`": {"ema_decay": 0.9},
    "numbers of transformers": {"reproduce": "transformers"},
    "GaLore, APOLLO": {"optim": "galore_adamw"},
    "`optim_layerwise`, LOMO": {"optim": "lomo"},
    "optimizers of 4 or 8 bit": {"optim": "adamw_bnb_8bit"},
}

WORDS = {
    "args": SimpleNamespace(
        local_rank="*n*", past_index="*n*", torch_compile_mode="*mode*", ema_decay="*decay*", max_grad_norm="*norm*"
    ),
    "device": SimpleNamespace(kind="*device*"),
    "parallelism": SimpleNamespace(name="*engine*"),
    "precision": "*format*",
    "precisions": "*other formats*",
    "optimizer": "*name*",
    "install": {"deepspeed": "install it", "fp8": "install it"},
}
"""Placeholders for the values of a run."""

OPENING = """# Compatibility

A feature works with an engine, or is refused before the first step; the numbers refer to the rows of the second table.

"""

REFUSED = """
## Refused combinations

All incompatible choices of a run are reported at once, each with the reason and a remedy. Problems that depend on the
model, the data or an engine's own settings are reported in the same way; see the pages of the engines.

"""


def page() -> str:
    """Return the page as Markdown."""
    features = _table(["", *ENGINES], ([name, *_cells(chosen)] for name, chosen in FEATURES.items()))
    return OPENING + features + REFUSED + _table(["", "choice", "problem", "remedy"], _numbered())


def devices() -> str:
    """Return the table of devices as Markdown."""
    rows = [_device(kind) for kind in sorted(KINDS.values(), key=lambda kind: [*ORDER, kind.name].index(kind.name))]
    rows.append(["any other that registers itself with torch (`PrivateUse1`)", "its own", STATED, STAND_IN])
    return _table(["device", "package", "formats", "ran"], rows)


ORDER = ("cpu", "cuda", "mps", "xla", "xpu")

STATED = "those that its package states"


def _device(kind: Kind) -> list[str]:
    what, formats, ran = KNOWN.get(kind.name, (f"`{kind.name}`", "", STAND_IN))
    if kind.name == "cpu":
        able = CpuDevice().capabilities
        formats = f"{', '.join(sorted(able.precisions))}; {', '.join(able.emulates)} by emulation"
    elif not formats:
        stated = getattr(kind.make, "keywords", {}).get("capabilities")
        formats = STATED if stated is None else ", ".join(sorted(stated.precisions))
    return [what, ", ".join(each.partition(".")[0] for each in kind.packages[:1]) or "torch", formats, ran]


def with_devices(text: str) -> str:
    """Return the page of devices with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + devices() + END + rest.partition(END)[2]


def _cells(chosen: Chosen) -> Iterator[str]:
    """Return for each engine "yes", or the numbers of the rules that reject it."""
    for processes, asked in ENGINES.values():
        numbers = [str(REFUSALS.index(row) + 1) for row in _refusals(processes, {**asked, **chosen})]
        yield f"no: {', '.join(numbers)}" if numbers else "yes"


def _refusals(processes: int, chosen: Chosen) -> list[Refusal]:
    arguments = Seq2SeqTrainingArguments("out", use_cpu=True, **chosen)
    arguments.distributed_environment = DistributedEnvironment(processes)
    parallelism = engine_for(arguments).make(arguments, CpuDevice())
    return refusals_of(Setting(arguments, GPU, precision_name(arguments), parallelism.capabilities))


def _numbered() -> Iterator[list[str]]:
    for number, row in enumerate(REFUSALS, 1):
        yield [str(number), *(text.format_map(WORDS) for text in (row.chosen, row.because, row.instead))]


def _table(heading: list[str], rows: Iterable[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (heading, ["---"] * len(heading), *rows))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    DEVICES.write_text(with_devices(DEVICES.read_text(encoding="utf-8")), encoding="utf-8")
