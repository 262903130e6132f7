"""The data of a Trainer: loaders, samplers, the columns that the model takes, and the sizes of a run."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly import torch as assembly
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.sharing import global_batch_size
from hexloop.app.hooks import is_standard, standard
from hexloop.app.rules import rules_of
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.triggers import make_plan


class TrainerData(TrainerAttributes):
    """Makes the loaders of training, evaluation and prediction, by overridden methods where there are some."""

    # Loaders

    @standard
    def get_train_dataloader(self) -> Any:
        """Return the batches of the training data."""
        if self.train_dataset is None:
            raise ConfigurationError("The Trainer has no data to train on; pass train_dataset.")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="Training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    @standard
    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the batches of `eval_dataset`: a data set, the name of one of several, or None for the Trainer's.

        Args:
            eval_dataset: a data set, the name of one of several, or None for the Trainer's.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        if dataset is None:
            raise ConfigurationError("The Trainer has no data to evaluate on; pass eval_dataset.")
        return self._get_dataloader(
            dataset=dataset,
            description="Evaluation",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
            dataloader_key=eval_dataset if isinstance(eval_dataset, str) else "eval",
        )

    @standard
    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the batches of `test_dataset`.

        Args:
            test_dataset: the data set to predict.
        """
        return self._get_dataloader(
            dataset=test_dataset,
            description="test",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
        )

    @standard
    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[..., Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        """Return the batches of `dataset`, in the order of the sampler that `sampler_fn` returns for it.

        The standard sampler methods stand for the run's own order. batch_size: of one process, or with `split_batches`
        of all. description: of the data, in messages. dataloader_key: the name under which an evaluation loader with
        persistent workers is kept: for the same data set, or with `reproduce` for any, as in transformers.
        """
        args = self.args
        keeps = dataloader_key is not None and args.dataloader_persistent_workers
        make = partial(self._make_loader, dataset, description, batch_size, sampler_fn, is_training)
        if dataloader_key is None or not keeps:
            loader = make()
        elif not rules_of(self.args).own_order:
            loader = self._kept_loaders.get(dataloader_key, make)
        else:
            sources = dataset, self.data_collator, batch_size, args.dataloader_num_workers
            loader = self._kept_loaders.of(dataloader_key, sources, make)
        return loader if self._accelerator is None else self._through_prepare(loader)

    def _through_prepare(self, loader: Any) -> Any:
        """Return a loader as a function that was assigned to `accelerator.prepare` returns it."""
        prepare = self._assigned("prepare")
        return loader if prepare is None else prepare(loader)

    def _make_loader(
        self, dataset: Any, description: str, batch_size: int, sampler_fn: Callable[..., Any] | None, is_training: bool
    ) -> Any:
        parts, collate = self._data_parts(), None
        if not is_standard(self._remove_unused_columns) and hasattr(dataset, "remove_columns"):
            dataset, collate = self._remove_unused_columns(dataset, description=description), parts.data_collator
        elif not is_standard(self._get_collator_with_removed_columns):
            collate = self._get_collator_with_removed_columns(self.data_collator, description=description)
            collate = parts.data_collator if collate is None else collate
        if parts.rules.own_order and sampler_fn is not None and is_standard(sampler_fn):
            sampler_fn = None
        return parts.adapters.framework.loader(parts, dataset, batch_size, sampler_fn, is_training, collate)

    # Samplers

    @standard
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Return a sampler of the training data's indices in the run's order; None for data without indices.

        If overridden, its sampler decides the order, unless it returns None.
        """
        return self._loaders().training_sampler(self.train_dataset if train_dataset is None else train_dataset)

    @standard
    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Return a sampler of the data set's indices in order; None for data without indices."""
        return self._loaders().evaluation_sampler(eval_dataset)

    def num_examples(self, dataloader: Any) -> int:
        """Return the samples of a loader; its length times the batch size if its data set has no length.

        Args:
            dataloader: a loader of batches.
        """
        count = self.adapters.framework.sample_count(dataloader)
        return len(dataloader) * self.args.per_device_train_batch_size if count is None else count

    def _data_parts(self) -> TrainerParts:
        """Return the parts of a run, in which the columns are those that an override set."""
        if self.args.remove_unused_columns and not is_standard(self._set_signature_columns_if_needed):
            self._set_signature_columns_if_needed()
        return self._collect_parts()

    def _loaders(self) -> Any:
        return assembly.data.loaders_of(self._data_parts())

    # Columns

    @standard
    def _set_signature_columns_if_needed(self) -> None:
        """Set `_signature_columns`, if it is None, to the parameters of the model's forward and the label names.

        If overridden, the columns that it sets are kept, and the others left out.
        """
        if self._signature_columns is None:
            self._signature_columns = assembly.data.signature_columns(self.model, self.label_names)

    @standard
    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        """Return a `datasets.Dataset` with only the columns that the model takes.

        If overridden, it replaces the selection of columns of such data sets.
        """
        return self._loaders().fitted(dataset)[0]

    @standard
    def _get_collator_with_removed_columns(
        self, data_collator: Callable[[list[Any]], Any], description: str | None = None
    ) -> Callable[[list[Any]], Any]:
        """Return a collate function that passes only the columns that the model takes to `data_collator`.

        If overridden, it replaces the selection of columns of data sets that are not a `datasets.Dataset`.
        """
        return assembly.data.selecting_collator(self._data_parts(), data_collator)

    # Sizes of a run, by the names of transformers

    def set_initial_training_values(
        self, args: TrainingArguments, dataloader: Any
    ) -> tuple[int, int, int, float, int, int | None, int]:
        """Return the sizes of a run with `args` over `dataloader`, in the order of transformers.

        Epochs; optimizer steps of an epoch; samples; samples trained on; samples of an optimizer step; batches of an
        epoch; optimizer steps of the run. Epochs are `sys.maxsize` if the data have no length.

        Args:
            args: the arguments of the run.
            dataloader: a loader of batches.

        Raises:
            ConfigurationError: if neither data nor arguments define the length of the run.
        """
        batches, accumulation = assembly.data.length_of(dataloader), args.gradient_accumulation_steps
        plan = make_plan(batches, accumulation, args.num_train_epochs, args.max_steps)
        total, size = plan.total_steps, self.get_total_train_batch_size(args)
        if batches is None:
            return sys.maxsize, total, total * size, total * size, size, total * accumulation, total
        steps_per_epoch = max(1, math.ceil(batches / accumulation))
        samples = self.num_examples(dataloader)
        if args.max_steps > 0:
            return math.ceil(total / steps_per_epoch), steps_per_epoch, samples, total * size, size, batches, total
        epochs = math.ceil(args.num_train_epochs)
        return epochs, steps_per_epoch, samples, samples * args.num_train_epochs, size, batches, total

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Return the samples in an optimizer step of all processes together.

        Args:
            args: the arguments of the run.
        """
        model_parallel_size = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()
        samples = (
            global_batch_size(args, self.adapters.mesh.data, self._train_batch_size) * args.gradient_accumulation_steps
        )
        return samples // model_parallel_size

    def get_sp_size(self) -> int:
        """Return the size of sequence parallelism by heads."""
        return 1

    def get_cp_size(self) -> int:
        """Return the size of context parallelism."""
        return 1

    def get_tp_size(self) -> int:
        """Return the size of tensor parallelism, as a model of transformers that was loaded with it states."""
        return int(getattr(self.model, "_tp_size", None) or 1)
