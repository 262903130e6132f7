"""The same training with hexloop and with transformers, in processes started by torchrun; see `train`.

torchrun runs this module with a library, an engine, a folder for the results, and the cases as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import make_model, summed
from tests.end_to_end.parity.runs import BOTH, Outcome
from tests.engines.processes import QUIET, ROOT, free_port
from tests.engines.several.whole import KeepingGradients, KeepingGradientsOfDeepSpeed, kept_gradients, whole_weights
from tests.warm_python import warm_python

LIMIT = 240
"""Time limit of a launch in seconds."""

ROWS, HELD_OUT = 216, 32
"""Both give full batches of 4 to each of two processes; accumulation over two batches leaves a window of one."""

ENGINES = {
    "ddp": "DistributedDataParallel",
    "fsdp1": "FullyShardedDataParallel",
    "fsdp2": "FSDPPlainGPT",
    "zero": "DeepSpeedEngine",
}
"""The classes of the wrapped models."""

Cases = Mapping[str, Mapping[str, Any]]
"""Arguments by case. "model" names the model, "stage" is ZeRO's, "own_loss" uses a loss function."""


def train(library: str, engine: str, cases: Cases, folder: Path, processes: int = 2) -> dict[str, Outcome]:
    """Return the result of each case. Raises AssertionError if a process failed, or used another engine."""
    words = [library, engine, str(folder), json.dumps(cases)]
    launcher = ["--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--nproc-per-node", str(processes)]
    command = [warm_python(), "-m", "torch.distributed.run", *launcher, "-m", __name__, *words]
    environment = {**os.environ, **QUIET, "PYTHON_EXEC": warm_python()}
    ended = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, timeout=LIMIT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-6000:]
    return {name: _outcome(folder / name, ENGINES[engine], processes) for name in cases}


def _outcome(folder: Path, engine: str, processes: int) -> Outcome:
    reported = json.loads((folder / "reported.json").read_text())
    assert (reported["engine"], reported["world_size"]) == (engine, processes)
    return Outcome(
        log=reported["log"],
        output=SimpleNamespace(**reported["output"]),
        weights=load_file(folder / "weights.safetensors"),
        gradients=kept_gradients(folder),
    )


def _train_one(library: Any, engine: str, folder: Path, case: dict[str, Any]) -> None:
    parts = _parts(library, case)
    model = case.pop("model")
    chosen = {**BOTH, **of_engine(engine, case.pop("stage", 0)), **case}
    trainer = library.Trainer(
        model=make_model(model),
        args=library.TrainingArguments(str(folder), **chosen),
        train_dataset=samples_for(model, ROWS),
        eval_dataset=samples_for(model, HELD_OUT, seed=1),
        **parts,
    )
    trainer.remove_callback(library.PrinterCallback)
    tells_late = library.__name__ != "hexloop" and engine == "zero"  # of a step that the engine has already run
    kind = KeepingGradientsOfDeepSpeed if tells_late else KeepingGradients
    trainer.add_callback(type("Keeping", (kind, library.TrainerCallback), {"trainer": trainer})())
    output = trainer.train()
    weights = whole_weights(trainer.model_wrapped)
    if trainer.is_world_process_zero():
        reported = {
            "engine": type(trainer.model_wrapped).__name__,
            "world_size": trainer.args.world_size,
            "log": trainer.state.log_history,
            "output": output._asdict(),
        }
        (folder / "reported.json").write_text(json.dumps(reported))
        save_file(weights, folder / "weights.safetensors")


def _parts(library: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a case that are not arguments of TrainingArguments."""
    if library.__name__ == "hexloop":
        case["loss_weighting"] = "reference"
    return {"compute_loss_func": summed} if case.pop("own_loss", False) else {}


def of_engine(engine: str, stage: int) -> dict[str, Any]:
    """Return the arguments that request an engine."""
    if engine == "zero":
        entries = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
        config = {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
        return {"deepspeed": {**config, **dict.fromkeys(entries, "auto")}}
    if engine.startswith("fsdp"):
        layers = {"version": int(engine[-1]), "transformer_layer_cls_to_wrap": ["Block"], "sync_module_states": False}
        return {"fsdp": "full_shard", "fsdp_config": layers}
    return {}


def let_accelerate_take(engine: str) -> dict[str, Any]:
    """Make accelerate use the engine on a CPU, where it silently falls back to DistributedDataParallel.

    Returns the arguments that make transformers use it.
    """
    from accelerate import PartialState
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    if engine == "ddp":
        return {}
    AcceleratorState._reset_state(reset_partial_state=True)
    if engine == "zero":
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # building it takes a minute
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
        PartialState(backend="gloo")
    else:
        state = PartialState(cpu=True)
        state.distributed_type = DistributedType.MULTI_GPU
        state.device = torch.device("cpu")  # without an index, which FSDP 1 does not accept for a CPU
    return {"use_cpu": False, "accelerator_config": {"use_configured_state": True}}


def main() -> None:
    """Train every case, in order."""
    name, engine, folder, cases = sys.argv[1], sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4])
    signal.alarm(LIMIT)  # otherwise a process whose launcher was killed would never end
    torch.set_num_threads(1)
    of_accelerate: dict[str, Any] = {}
    library: Any = importlib.import_module(name)
    for case, arguments in cases.items():
        (folder / case).mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            if name == "transformers":
                warnings.simplefilter("ignore")  # warnings of transformers itself
                of_accelerate = let_accelerate_take(engine)
            _train_one(library, engine, folder / case, {**of_accelerate, **arguments})
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # threads of torch may abort a normal exit of the interpreter


if __name__ == "__main__":
    main()
