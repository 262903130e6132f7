"""How large a Trainer's run is, and over how much it is spread."""

from __future__ import annotations

import math
import sys
from typing import Any

from hexloop.adapters.batches.torch.batches import length_of
from hexloop.app.arguments import TrainingArguments
from hexloop.app.trainer.data import Data
from hexloop.app.training.loaders import global_batch_size
from hexloop.domain.plan import make_plan


class Sizes(Data):
    """The sizes of a run by the reference library's names."""

    def set_initial_training_values(
        self, args: TrainingArguments, dataloader: Any
    ) -> tuple[int, int, int, float, int, int | None, int]:
        """The sizes of a run with `args` over `dataloader`, in the reference library's order.

        Epochs; optimizer steps of an epoch; samples; samples trained on; samples of an optimizer step; batches of an
        epoch; optimizer steps of the run. Epochs are `sys.maxsize` where the data have no length.
        Raises ConfigurationError where neither data nor arguments say how long the run is.
        """
        batches, accumulation = length_of(dataloader), args.gradient_accumulation_steps
        plan = make_plan(batches, accumulation, args.num_train_epochs, args.max_steps)
        total, size = plan.total_steps, self.get_total_train_batch_size(args)
        if batches is None:
            return sys.maxsize, total, total * size, total * size, size, total * accumulation, total
        a_pass = max(1, math.ceil(batches / accumulation))
        samples = self.num_examples(dataloader)
        if args.max_steps > 0:
            return math.ceil(total / a_pass), a_pass, samples, total * size, size, batches, total
        epochs = math.ceil(args.num_train_epochs)
        return epochs, a_pass, samples, samples * args.num_train_epochs, size, batches, total

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Samples in an optimizer step of all processes together."""
        spread = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()
        return global_batch_size(args, self._train_batch_size) * args.gradient_accumulation_steps // spread

    def get_sp_size(self) -> int:
        """Over how many processes each sequence is spread by its heads."""
        return 1

    def get_cp_size(self) -> int:
        """Over how many processes each sequence is spread by its positions."""
        return 1

    def get_tp_size(self) -> int:
        """Over how many processes each layer is spread; transformers' models that are loaded so say it themselves."""
        return int(getattr(self.model, "_tp_size", None) or 1)
