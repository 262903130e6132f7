"""What follows from the arguments and the surroundings of the process."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hexloop.app.arguments.choices import ParallelMode
from hexloop.app.arguments.every import EveryArgument
from hexloop.app.arguments.reporting import LOG_LEVELS
from hexloop.app.environment import Surroundings, count_gpus, detect_device, is_on, launched, surroundings_of

if TYPE_CHECKING:
    import torch


_GIVEN = "_given_surroundings"


class DerivedValues(EveryArgument):
    """Read-only values. `surroundings` is no argument: it is no field, and another may be put in its place."""

    @property
    def surroundings(self) -> Surroundings:
        """Where this process stands among those that a launcher started."""
        given: Surroundings | None = vars(self).get(_GIVEN)
        return surroundings_of(launched(), self._wait_for_all) if given is None else given

    @surroundings.setter
    def surroundings(self, surroundings: Surroundings) -> None:
        vars(self)[_GIVEN] = surroundings

    def _wait_for_all(self) -> None:
        from hexloop.app.joining import join

        join(self).barrier("main_process_first")

    @property
    def train_batch_size(self) -> int:
        """Samples in a training micro-batch of this process."""
        return self.per_device_train_batch_size * max(1, self.n_gpu)

    @property
    def eval_batch_size(self) -> int:
        """Samples in an evaluation batch of this process."""
        return self.per_device_eval_batch_size * max(1, self.n_gpu)

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        import torch

        if self._on_the_processor:
            return torch.device("cpu")
        around = self.surroundings
        return torch.device(around.device or detect_device(around.local_process_index))

    @property
    def n_gpu(self) -> int:
        """The GPUs that this process trains on; 0 on the processor."""
        if self._on_the_processor:
            return 0
        if self.surroundings.n_gpu is not None:
            return self.surroundings.n_gpu
        return count_gpus(self.device, self.world_size)

    @property
    def _on_the_processor(self) -> bool:
        return self.use_cpu or is_on("ACCELERATE_USE_CPU")

    @property
    def ddp_timeout_delta(self) -> timedelta:
        """`ddp_timeout` as torch takes it."""
        return timedelta(seconds=self.ddp_timeout)

    @property
    def parallel_mode(self) -> ParallelMode:
        """How the model is spread: over processes, over GPUs of this process, or not at all."""
        if self.world_size > 1:
            return ParallelMode.DISTRIBUTED
        return ParallelMode.NOT_DISTRIBUTED if self.n_gpu > 1 else ParallelMode.NOT_PARALLEL

    @property
    def world_size(self) -> int:
        """The processes of the run."""
        return self.surroundings.world_size

    @property
    def process_index(self) -> int:
        """This process among all of the run."""
        return self.surroundings.process_index

    @property
    def local_process_index(self) -> int:
        """This process among those of its machine."""
        return self.surroundings.local_process_index

    @property
    def should_log(self) -> bool:
        """Whether this process is one that logs."""
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    @property
    def should_save(self) -> bool:
        """Whether this process is one that writes checkpoints."""
        return (self.local_process_index if self.save_on_each_node else self.process_index) == 0

    @property
    def place_model_on_device(self) -> bool | None:
        """Whether the Trainer moves the model to the device. None leaves it to the Trainer; a subclass may decide."""
        return None

    def get_process_log_level(self) -> int:
        """The level of Python's logging for this process, that of hexloop's logger where the argument is `passive`."""
        level = LOG_LEVELS[self.log_level if self.should_log else self.log_level_replica]
        return logging.getLogger("hexloop").getEffectiveLevel() if level == -1 else level

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """The warm-up in optimizer steps, in a run of `num_training_steps`; a ratio of them is rounded up."""
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * self.warmup_steps)

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Let the first process (of each machine if `local`, else of the run) do the block before any other does.

        `desc` says in debug messages what the block does.
        """
        first = (self.local_process_index if local else self.process_index) == 0
        if not first:
            logging.getLogger("hexloop").debug("process %d waits for the first to do: %s", self.process_index, desc)
            self.surroundings.barrier()
        try:
            yield
        finally:
            if first:
                self.surroundings.barrier()

    def to_json_string(self) -> str:
        """`to_dict` as JSON; what JSON has no form for, such as a path or a torch dtype, as its text."""
        return json.dumps(self.to_dict(), indent=2, default=lambda value: str(value).removeprefix("torch."))

    def to_sanitized_dict(self) -> dict[str, Any]:
        """`to_dict` and the batch sizes, for trackers: whatever is no truth value, number or text becomes text."""
        values = {**self.to_dict(), "train_batch_size": self.train_batch_size, "eval_batch_size": self.eval_batch_size}
        return {name: value if type(value) in (bool, int, float, str) else str(value) for name, value in values.items()}
