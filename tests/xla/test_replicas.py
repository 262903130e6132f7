"""Several processes on XLA, each with the whole model: what runs on the CPU, as two threads of one process.

A thread has a device and a number of its own there, as a process has on a TPU. Their collectives fail on the CPU if
both threads compile at once, so each waits a while before it starts what it recorded.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.adapters.trainable.torch.trainable import LOCAL_ITEM_SUM, ItemSum, ModelLoss, TorchTrainable
from hexloop.domain.loop import StandardLearner
from tests.end_to_end.small.models import Net, rows

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, time
from types import SimpleNamespace
import torch_xla, torch_xla.runtime as runtime
from torch_xla._internal import pjrt
from hexloop import ConfigurationError
from hexloop.adapters.device.torch.xla import XlaDevice
from hexloop.adapters.engines.xla.engine import Xla, check_replicas
from hexloop.adapters.trainable.torch.trainable import recorded_item_sum
from tests.xla.test_replicas import ROWS, SEEDS, model_of, steps

start = torch_xla.sync

def after_the_others(*given, **named):
    time.sleep(1.5 * runtime.global_ordinal())
    return start(*given, **named)

torch_xla.sync = after_the_others

def refused(**run):
    try:
        check_replicas(SimpleNamespace(**run))
    except ConfigurationError as error:
        return str(error)

models = [model_of(seed) for seed in SEEDS]  # before the threads, which share torch's generator

def replica():
    device, rank = XlaDevice(), runtime.global_ordinal()
    said = [refused(world_size=2, process_index=rank), refused(world_size=2, process_index=1 - rank),
            refused(world_size=1, process_index=0)]
    adapter = Xla(device, replicas=2)
    items = recorded_item_sum(2, device.name, device.flush)
    return [rank, said, *steps(models[rank].to(device.name), adapter, items, ROWS[rank], device.name)]

found = pjrt._run_thread_per_device(0, 1, replica, pjrt.initialize_multiprocess)
print(json.dumps([found[rank] for rank in sorted(found)]))
"""

SEEDS = (3, 4)
"""Of the weights with which the replicas start."""

ROWS = (slice(0, 5), slice(5, 8))
"""What each replica has of every batch, which it need not have the same number of."""


def model_of(seed: int) -> Net:
    """Return a model with weights drawn by a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def steps(model: Any, adapter: Any, items: ItemSum, part: slice, device: str) -> tuple[list[float], list[Any]]:
    """Take two clipped steps on a part of each batch; return the norms, and then the weights."""
    wrapped, optimizer = adapter.prepare(model, lambda each: torch.optim.AdamW(each.parameters(), lr=0.1))
    trainable = TorchTrainable(wrapped, optimizer, ModelLoss(), item_sum=items)
    learner: StandardLearner[Any, Any] = StandardLearner(trainable, PlainPrecision(), adapter)
    norms = []
    for step in range(2):
        samples = rows(8, seed=step)[part]
        batch = {name: torch.stack([each[name] for each in samples]).to(device) for name in samples[0]}
        learner.micro_step(batch, learner.count_items([batch]), True)
        norms.append(learner.update(0.1)[0])
    return [float(norm) for norm in norms if norm is not None], [each.cpu().tolist() for each in model.parameters()]


@pytest.mark.matrix
def test_replicas_take_the_steps_of_one_process() -> None:
    """From the weights of the first, and with the gradients of all, summed before they are clipped.

    XLA ends the process if a thread reaches a collective 10 seconds after the other, as on a busy machine.
    """
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True, cwd=ROOT, timeout=300,
            env={**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2"},
        )  # fmt: skip
        if done.returncode != -signal.SIGABRT or "rendezvous" not in done.stderr:
            break
    else:
        pytest.skip("the collectives of XLA's threads on the CPU met too late, four times")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    norms, weights = steps(model_of(SEEDS[0]), SingleProcess(), LOCAL_ITEM_SUM, slice(0, 8), "cpu")

    assert [rank for rank, *_ in found] == [0, 1]
    for _, said, its_norms, its_weights in found:
        assert said[0] is None
        assert "--node-rank is the number of the TPU's worker" in said[1]
        assert "This run has 1 process, but XLA (CPU) connects 2 devices" in said[2]
        assert its_norms == pytest.approx(norms, rel=1e-5)
        for own, expected in zip(its_weights, weights, strict=True):
            torch.testing.assert_close(torch.tensor(own), torch.tensor(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.matrix
def test_processes_that_xla_does_not_connect_are_refused(tmp_path: Path) -> None:
    """On the CPU each would train a model of its own: those of `hexloop launch`, and of torch_xla's launcher."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "from tests.end_to_end.small.trainers import small_trainer\n"
        "from pathlib import Path\n"
        "def _mp_fn(index):\n"
        "    small_trainer(Path('out'), use_cpu=False, max_steps=2)\n"
        "    print('trains', index, sys.argv[1:])\n"
    )
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}

    def launched(processes: int) -> Any:
        command = [sys.executable, "-m", "hexloop", "launch", "--tpu", str(processes), str(script), "--a", "b"]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300
        )

    alone = launched(1)
    assert alone.returncode == 0, alone.stderr[-3000:]
    assert "trains 0 ['--a', 'b', '--tpu_num_cores', '1']" in alone.stdout
    two = launched(2)
    assert two.returncode != 0
    assert "This run has 2 processes, but XLA (CPU) connects 1 device, so that each process would" in two.stderr
