"""The loaders of a Trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hexloop.adapters.batches.torch.collate import DataCollatorWithPadding, default_data_collator
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.app.training.columns import used_columns
from hexloop.app.training.hooks import is_overridden, standard
from hexloop.app.training.loaders import LoaderMaker, example_count, sampler_of
from hexloop.domain.errors import ConfigurationError


class Data(TrainerAttributes):
    """How a Trainer reads its data."""

    def get_train_dataloader(self) -> Any:
        """The batches of the training data."""
        if self.train_dataset is None:
            raise ConfigurationError(["You asked to train, but the Trainer has no data; pass train_dataset."])
        maker = self._loader_maker()
        if is_overridden(self, "_get_train_sampler"):
            sampler = sampler_of(self._get_train_sampler, self.train_dataset)
            if sampler is not None:
                return maker.sampled(self.train_dataset, self._train_batch_size, sampler)
        return maker.training(self.train_dataset, self._train_batch_size)

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
        return self._evaluation_loader(dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """The batches of `test_dataset`."""
        return self._evaluation_loader(test_dataset)

    def num_examples(self, dataloader: Any) -> int:
        """How many samples a loader gives; its length times the batch size where its data set has no length."""
        count = example_count(dataloader)
        return len(dataloader) * self.args.per_device_train_batch_size if count is None else count

    def _evaluation_loader(self, dataset: Any) -> Any:
        maker = self._loader_maker()
        sampler = self._get_eval_sampler(dataset) if is_overridden(self, "_get_eval_sampler") else None
        if sampler is None:
            return maker.evaluation(dataset)
        return maker.sampled(dataset, self.args.eval_batch_size, sampler)

    @standard
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """A sampler of the training data's indices in the run's order; None where they can only be read in turn.

        Overridden, its sampler decides the order, unless it gives None.
        """
        return self._loader_maker().training_sampler(self.train_dataset if train_dataset is None else train_dataset)

    @standard
    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """A sampler of the data set's indices, one after the other; None where they can only be read in turn."""
        return self._loader_maker().evaluation_sampler(eval_dataset)

    def _loader_maker(self) -> LoaderMaker:
        columns = used_columns(self.model, self.label_names)
        pins = self.adapters.device.capabilities.pins_memory
        return LoaderMaker(self.args, self.data_collator, columns, pins, self.main_input_name)

    def _default_collator(self) -> Callable[[list[Any]], Any]:
        if hasattr(self.processing_class, "pad"):
            return DataCollatorWithPadding(self.processing_class)
        return default_data_collator
