"""The files and console texts that a script leaves behind."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any, cast

from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.app.training import results, saving

if TYPE_CHECKING:
    from hexloop.app.trainer.trainer import Trainer


class Results(TrainerAttributes):
    """What a Trainer tells of its results. Of several processes only the first one of the run prints and writes."""

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Print the metrics of a split ("train", "eval", "test"), as `metrics_format` gives them, in aligned lines."""
        if self.is_world_process_zero():
            print(results.table(split, metrics))

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Write `<split>_results.json` in the output folder.

        With `combined`, all_results.json gets them too, in the place of those that it has under the same names.
        """
        if self.is_world_process_zero():
            results.save(cast("Trainer", self), split, metrics, combined)

    @staticmethod
    def metrics_format(metrics: dict[str, Any]) -> dict[str, Any]:
        """A readable copy: memory in MB, floating-point operations in GF, times as h:mm:ss.cc, four decimals."""
        return results.readable(metrics)

    def save_state(self) -> None:
        """Write the state to trainer_state.json in the output folder."""
        if self.is_world_process_zero():
            saving.save_state(cast("Trainer", self))

    @staticmethod
    def num_tokens(train_dl: Any, max_steps: int | None = None) -> int:
        """The tokens of all batches of a loader, or `max_steps` times those of its first one.

        0, and a warning, where its batches have no "input_ids".
        """
        try:
            return results.count_tokens(train_dl, max_steps)
        except KeyError:
            warnings.warn("The loader's tokens cannot be counted: its batches have no input_ids.", stacklevel=2)
            return 0

    def compare_trainer_and_checkpoint_args(self, training_args: Any, trainer_state: Any) -> None:
        """Warn, on hexloop's logger, of a rhythm or batch size that differs from that of a checkpoint's state."""
        if found := results.differences(training_args, trainer_state):
            logging.getLogger("hexloop").warning("The run goes on otherwise than it began: %s.", "; ".join(found))

    def is_world_process_zero(self) -> bool:
        """Whether this process is the first of the run."""
        return self.adapters.collectives.rank == 0

    def is_local_process_zero(self) -> bool:
        """Whether this process is the first of its machine."""
        return self.args.local_process_index == 0
