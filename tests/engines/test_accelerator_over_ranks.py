"""accelerate's functions and `trainer.accelerator` in two processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.engines.several.training import Training, run


def numbers(count: int) -> Any:
    """Return a dataset of the first numbers."""
    return list(range(count))


def exchange(trainer: Any) -> None:
    """Use accelerate's functions before and after the accelerator is touched; called in each process."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list, gather_object

    rank = trainer.args.process_index
    assert gather_object([f"rank {rank}"]) == ["rank 0", "rank 1"]
    assert broadcast_object_list([rank]) == [0]
    state = PartialState()
    assert (state.process_index, state.num_processes, state.device.type) == (rank, 2, "cpu")
    accelerator = trainer.accelerator
    loader = accelerator.prepare(DataLoader(numbers(6), batch_size=1))
    rows = torch.cat([accelerator.gather_for_metrics(batch) for batch in loader])
    assert rows.tolist() == [0, 1, 2, 3, 4, 5]
    repeating = accelerator.prepare(DataLoader(numbers(5), batch_size=1))
    assert torch.cat([accelerator.gather_for_metrics(batch) for batch in repeating]).tolist() == [0, 1, 2, 3, 4]
    other = torch.nn.Linear(2, 1)
    assert accelerator.prepare_model(other, evaluation_mode=True) is other
    assert isinstance(accelerator.prepare(torch.nn.Linear(2, 1)), torch.nn.parallel.DistributedDataParallel)
    again = accelerator.prepare(trainer.model)  # without a run, a loop of user code would train it
    assert isinstance(again, torch.nn.parallel.DistributedDataParallel)
    assert accelerator.gather_for_metrics([{"rank": rank}]) == [{"rank": 0}, {"rank": 1}]
    with accelerator.main_process_first():
        pass


def test_accelerate_finds_the_processes_of_the_run(tmp_path: Path) -> None:
    """gather_object, broadcast_object_list, PartialState and prepared loaders work over the run's process group."""
    run(Training(processes=2, afterwards=exchange, saves=False, arguments={"max_steps": 2}), tmp_path)
