"""How samples are ordered, loaded and turned into batches."""

from __future__ import annotations

from hexloop.app.arguments.checks import at_least, one_of
from hexloop.app.arguments.declare import argument, argument_group, rule
from hexloop.app.arguments.group import Arguments
from hexloop.domain.wording import RefusalError


@argument_group
class Data(Arguments):
    """Data."""

    train_sampling_strategy: str = argument(
        default="random",
        checks=(one_of("random", "sequential", "group_by_length"),),
        help="order of training samples: random, sequential, or group_by_length (random, but like lengths together)",
    )
    length_column_name: str = argument(
        default="length", help="column that holds the samples' lengths, for group_by_length"
    )
    remove_unused_columns: bool = argument(
        default=True, help="drop columns of a dataset that the model's forward method does not take"
    )
    label_names: list[str] | None = argument(
        default=None, help="the model's inputs that are labels; found from the model's signature if not given"
    )
    dataloader_num_workers: int = argument(
        default=0, checks=(at_least(0),), help="processes that load batches; 0 loads them in the training process"
    )
    dataloader_prefetch_factor: int | None = argument(
        default=None, checks=(at_least(1),), help="batches that each worker keeps ready; 2 if not given"
    )
    dataloader_persistent_workers: bool = argument(
        default=False, help="keep the workers alive from one epoch to the next"
    )
    dataloader_multiprocessing_context: str | None = argument(
        default=None,
        checks=(one_of("fork", "spawn", "forkserver"),),
        help="how workers are started: fork, spawn or forkserver; as torch does by itself if not given",
    )
    dataloader_in_order: bool = argument(
        default=True, help="hand out batches in their order, even while a later one is ready earlier"
    )
    dataloader_pin_memory: bool = argument(
        default=True, help="put batches into page-locked memory, from which copies to a GPU are faster"
    )
    dataloader_drop_last: bool = argument(default=False, help="leave out the last batch if it is not full")

    @rule("dataloader_prefetch_factor", "dataloader_num_workers")
    def _prefetch_by_workers(self) -> None:
        if self.dataloader_prefetch_factor is not None and self.dataloader_num_workers == 0:
            raise RefusalError("only workers load batches ahead", _TURN_ON_WORKERS)

    @rule("dataloader_persistent_workers", "dataloader_num_workers")
    def _workers_that_persist(self) -> None:
        if self.dataloader_persistent_workers and self.dataloader_num_workers == 0:
            raise RefusalError("there are no workers to keep alive", _TURN_ON_WORKERS)

    @rule("dataloader_multiprocessing_context", "dataloader_num_workers")
    def _workers_to_start(self) -> None:
        if self.dataloader_multiprocessing_context is not None and self.dataloader_num_workers == 0:
            raise RefusalError("there are no workers to start", _TURN_ON_WORKERS)


_TURN_ON_WORKERS = "give dataloader_num_workers a positive value, or leave the other out"
