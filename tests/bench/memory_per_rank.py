"""Memory per process under FSDP and ZeRO 3, with hexloop and with the engine in a hand-written loop.

Run as `python -m tests.bench.memory_per_rank [--processes 1 2 4]`. Each figure is the peak of the resident memory of
any process in a phase, above that before the model was created, in MB. Each phase starts with a new high-water mark.
Large blocks are allocated with mmap and returned at once, so that freed memory does not count.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.engines.processes import free_port

ROOT = Path(__file__).parents[2]
ENGINES = ("fsdp1", "fsdp2", "zero3")
PHASES = ("training", "saving", "loading")
LAYERS, WIDTH, BATCH, STEPS = 24, 1024, 4, 3
LIMIT = 600


class Tower(nn.Module):
    """Layers of a million parameters each."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return {"loss": x.square().mean()}


class Peaks:
    """Records the peak of resident memory of each phase."""

    def __init__(self) -> None:
        self.noted: dict[str, float] = {}
        self._before = _resident("VmRSS")

    def begin(self) -> None:
        """Start a phase."""
        Path("/proc/self/clear_refs").write_text("5")

    def note(self, phase: str) -> None:
        """End a phase, and start the next one."""
        self.noted[phase] = _resident("VmHWM") - self._before
        self.begin()


def _resident(name: str) -> float:
    """Return the value in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name))


def rows(count: int = BATCH * STEPS * 8) -> list[dict[str, Tensor]]:
    """Random data."""
    draw = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(WIDTH, generator=draw)} for _ in range(count)]


def zero3() -> dict[str, Any]:
    """DeepSpeed's configuration in both."""
    return {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}


def by_hexloop(engine: str, folder: str, layers: int, resumes: bool) -> dict[str, float]:
    """Hexloop's Trainer, which saves asynchronously."""
    from hexloop import Trainer, TrainerCallback, TrainingArguments

    class Watch(TrainerCallback):
        """Marks the ends of phases; the last ends when everything is written."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == 0:
                peaks.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == STEPS:
                peaks.note("training")

    class Watched(Trainer):
        """Marks the preparation of the model."""

        def create_optimizer(self, model: Any = None) -> Any:
            peaks.begin()
            return super().create_optimizer(model)

    chosen: dict[str, Any] = {"deepspeed": zero3()}
    if engine != "zero3":
        chosen = {
            "fsdp": "full_shard",
            "fsdp_config": {"version": int(engine[-1]), "transformer_layer_cls_to_wrap": ["Linear"]},
        }
    if dist.get_world_size() == 1 and engine != "zero3":
        chosen = {}
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=BATCH, max_steps=STEPS, save_steps=STEPS, save_strategy="steps",
        logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, learning_rate=1e-4, **chosen,
    )  # fmt: skip
    peaks = Peaks()
    trainer: Any = Watched(Tower(layers), arguments, train_dataset=rows(), callbacks=[] if resumes else [Watch()])
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{STEPS}" if resumes else None)
    peaks.note("loading" if resumes else "saving")
    return peaks.noted


def by_hand(engine: str, folder: str, layers: int, resumes: bool) -> dict[str, float]:
    """The engine in a hand-written loop, with torch's own asynchronous checkpoints, staged in host memory, too."""
    return (_by_deepspeed if engine == "zero3" else _by_torch)(engine, folder, layers, resumes)


def _by_torch(engine: str, folder: str, layers: int, resumes: bool) -> dict[str, float]:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import async_save

    peaks = Peaks()
    model, optimizer = _spread(engine, layers, peaks)
    if resumes:
        weights, moments = get_state_dict(model, optimizer)
        load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        peaks.note("loading")
        return peaks.noted
    _train(model, Tensor.backward, lambda: _step(model, optimizer))
    peaks.note("training")
    weights, moments = get_state_dict(model, optimizer)
    written: Any = async_save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    written.result()
    peaks.note("saving")
    return peaks.noted


def _spread(engine: str, layers: int, peaks: Peaks) -> tuple[Any, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model: Any = Tower(layers)
    if engine == "fsdp1" and dist.get_world_size() > 1:
        model = FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            use_orig_params=True,
            device_id=torch.device("cpu"),
            device_mesh=init_device_mesh("cpu", (dist.get_world_size(),)),
        )
    elif engine == "fsdp2" and dist.get_world_size() > 1:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    peaks.begin()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def _train(model: Any, backward: Callable[[Tensor], Any], step: Callable[[], Any]) -> None:
    data = rows()
    for number in range(STEPS):
        batch = torch.stack([row["x"] for row in data[number * BATCH : (number + 1) * BATCH]])
        backward(model(batch)["loss"])
        step()


def _by_deepspeed(engine: str, folder: str, layers: int, resumes: bool) -> dict[str, float]:
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    config = {"train_micro_batch_size_per_gpu": BATCH, "gradient_clipping": 1.0, **zero3()}
    config |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    peaks = Peaks()
    model = Tower(layers)
    peaks.begin()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    spread: Any = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    if resumes:
        spread.load_checkpoint(folder)
        peaks.note("loading")
        return peaks.noted
    peaks.begin()
    _train(spread, spread.backward, spread.step)
    peaks.note("training")
    spread.save_checkpoint(folder)
    peaks.note("saving")
    return peaks.noted


LIBRARIES: dict[str, Callable[[str, str, int, bool], dict[str, float]]] = {"by hand": by_hand, "hexloop": by_hexloop}


def one_rank(library: str, engine: str, folder: str, resumes: bool) -> None:
    """Print this rank's figures, after a short run that imports everything."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    sys.stdout.flush()
    told, silent = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    LIBRARIES[library](engine, f"{folder}/small", 1, resumes)
    gc.collect()
    found = LIBRARIES[library](engine, f"{folder}/run", LAYERS, resumes)
    os.write(told, (json.dumps(found) + "\n").encode())
    dist.barrier()
    os._exit(0)


def measure(library: str, engine: str, processes: int) -> dict[str, float]:
    """Return the highest figure of any rank for each phase; loading uses other processes than saving."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for phase in ("train", "load"):
            told = _told(processes, [library, engine, folder, phase])
            found |= {name: max(each[name] for each in told) for name in told[0]}
    return found


def _told(processes: int, words: list[str]) -> list[dict[str, float]]:
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "DS_ACCELERATOR": "cpu", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.bench.memory_per_rank", "--one", *words]
    ranks = []
    for rank in range(processes):
        own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, text=True))
    try:
        return [json.loads(rank.communicate(timeout=LIMIT)[0].splitlines()[-1]) for rank in ranks]
    finally:
        for process in ranks:
            process.kill()


def lines(engine: str, processes: int, figures: dict[str, dict[str, float]]) -> Iterable[str]:
    """Return a row of the table for each phase."""
    for phase in PHASES:
        hand, own = figures["by hand"][phase], figures["hexloop"][phase]
        yield f"{engine:8}{processes:10}  {phase:10}{hand:10.0f}{own:10.0f}{own / hand:8.2f}"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--one", nargs=4, metavar=("LIBRARY", "ENGINE", "FOLDER", "PHASE"))
    options = parser.parse_args()
    if options.one:
        library, engine, folder, phase = options.one
        one_rank(library, engine, folder, phase == "load")
    print(f"{'engine':8}{'processes':>10}  {'phase':10}{'by hand':>10}{'hexloop':>10}{'ratio':>8}")
    for engine in options.engines:
        for processes in options.processes:
            figures = {library: measure(library, engine, processes) for library in LIBRARIES}
            print("\n".join(lines(engine, processes, figures)), flush=True)


if __name__ == "__main__":
    main()
