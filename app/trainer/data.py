"""The loaders of a Trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hexloop.adapters.batches.torch.collate import DataCollatorWithPadding, default_data_collator
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.app.training.columns import used_columns
from hexloop.app.training.hooks import standard
from hexloop.app.training.loaders import LoaderMaker, example_count
from hexloop.domain.errors import ConfigurationError


class Data(TrainerAttributes):
    """How a Trainer reads its data."""

    def get_train_dataloader(self) -> Any:
        """The batches of the training data."""
        if self.train_dataset is None:
            raise ConfigurationError(["You asked to train, but the Trainer has no data; pass train_dataset."])
        return self._loader_maker().training(self.train_dataset, self._train_batch_size)

    @property
    def _train_batch_size(self) -> int:
        """Samples in a training micro-batch of this process: what the arguments say, or less where that was found."""
        found: int | None = vars(self).get("found_batch_size")
        return self.args.train_batch_size if found is None else found

    @_train_batch_size.setter
    def _train_batch_size(self, size: int) -> None:
        vars(self)["found_batch_size"] = size

    @standard
    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The batches of `eval_dataset`: a data set, the name of one of several, or None for the Trainer's own."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        if dataset is None:
            raise ConfigurationError(["You asked to evaluate, but the Trainer has no data for it; pass eval_dataset."])
        return self._loader_maker().evaluation(dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """The batches of `test_dataset`."""
        return self._loader_maker().evaluation(test_dataset)

    def num_examples(self, dataloader: Any) -> int:
        """How many samples a loader gives; its length times the batch size where its data set has no length."""
        count = example_count(dataloader)
        return len(dataloader) * self.args.per_device_train_batch_size if count is None else count

    def _loader_maker(self) -> LoaderMaker:
        columns = used_columns(self.model, self.label_names)
        pins = self.adapters.device.capabilities.pins_memory
        return LoaderMaker(self.args, self.data_collator, columns, pins, self.main_input_name)

    def _default_collator(self) -> Callable[[list[Any]], Any]:
        if hasattr(self.processing_class, "pad"):
            return DataCollatorWithPadding(self.processing_class)
        return default_data_collator
