"""Packing, padding-free batches and budgets of tokens: what the arguments ask for, and the loaders that do it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import define, evolve, field, frozen
from torch.utils.data import get_worker_info

from hexloop.adapters.batches.torch.batches import TorchBatches
from hexloop.adapters.batches.torch.collate import Collate, DataCollatorWithPadding, default_data_collator
from hexloop.adapters.batches.torch.data_state import Progress, is_stateful
from hexloop.adapters.batches.torch.document_lengths import DocumentLengths
from hexloop.adapters.batches.torch.documents import (
    DOCUMENT_COLUMNS,
    CutSamples,
    DocumentCollate,
    JoinedRows,
    no_document,
)
from hexloop.adapters.batches.torch.loader import has_own_columns, is_iterable
from hexloop.adapters.batches.torch.order import SampleOrders
from hexloop.adapters.batches.torch.packing import (
    PackedBatchSampler,
    PackedLoader,
    PackedStream,
    UnitCollate,
    documents_in,
    packed_stream,
)
from hexloop.adapters.batches.torch.random_streams import preserved_rng_states
from hexloop.adapters.batches.torch.stream import StreamLoader
from hexloop.adapters.trainable.torch.forward import shifts_labels
from hexloop.adapters.trainable.torch.names import unwrapped
from hexloop.adapters.trainable.torch.packed import PackedInputs, inputs_of, why_not_packed
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.packing import own_value
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.order import Order, Shard
from hexloop.domain.packing import BFD, BFD_SPLIT, WINDOW, Packing, Planner, TokenBudget, UnitOrder

LOGGER = logging.getLogger("hexloop")

MOST_AHEAD = 4_000_000
"""Documents, over all epochs, that are planned before the first step if `num_train_epochs` sets the end of a run."""

FLATTENING = "DataCollatorWithFlattening"
"""The collate function of transformers that joins the samples of a batch in one row."""

OWN_COLLATORS = ("DataCollatorForLanguageModeling",)
"""Collate functions of transformers and trl that do for a row what `DocumentCollate` does for packed ones."""


def flattens(collate: object) -> bool:
    """Return whether a collate function is transformers' DataCollatorWithFlattening."""
    return any(kind.__name__ == FLATTENING for kind in type(collate).__mro__)


@define
class CutOffs:
    """Reports once that documents are cut off. reports: whether this process does."""

    max_length: int | None
    reports: bool
    _done: bool = field(default=False, init=False)

    def __call__(self, cut: int, read: int) -> None:
        """Report that so many of the documents that were read are longer than `max_length`."""
        if self._is_due:
            LOGGER.warning(
                "%d of the first %d documents that were read %s longer than max_length=%s, and what is beyond it is "
                "not used; set a larger max_length, or packing_strategy='bfd_split' with packing=True.",
                cut,
                read,
                "is" if cut == 1 else "are",
                self.max_length,
            )
        self._done = True

    @property
    def _is_due(self) -> bool:
        """Whether nothing was reported yet, and no other loader worker reports it."""
        worker = get_worker_info()  # whose id is read unseen by what watches who asks for it
        first = worker is None or object.__getattribute__(worker, "id") == 0
        return self.reports and first and not self._done

    def noted(self, cut: int) -> None:
        """Report that so many samples of a batch are longer."""
        if self._is_due:
            LOGGER.warning(
                "%d sample%s of a batch %s longer than max_length=%s, and what is beyond it is not used; set a larger "
                "max_length, or pack the data with packing=True and packing_strategy='bfd_split'.",
                cut,
                "" if cut == 1 else "s",
                "is" if cut == 1 else "are",
                self.max_length,
            )
        self._done = True


@frozen
class Sequences:
    """How documents become batches in training or in evaluation.

    packs: several documents share a row. flat: all rows of a batch are joined to one. collate: makes the batches, of
    rows or of documents. tokens: of a batch at most; None if it has a number of rows.
    """

    packs: bool
    strategy: str
    max_length: int | None
    flat: bool
    tokens: int | None
    multiple: int
    collate: Collate
    cut_off: CutOffs

    @property
    def plans(self) -> bool:
        """Whether the rows of batches follow from the lengths of documents."""
        return self.packs or self.tokens is not None

    def planner(self, shuffles: bool, grouped: bool) -> Planner:
        """Return what plans the rows. shuffles, grouped: see `Planner`."""
        budget = None if self.tokens is None else TokenBudget(self.tokens, not self.flat, self.multiple)
        return Planner(Packing(self.max_length, self.strategy if self.packs else None), budget, shuffles, grouped)


def sequences_of(
    args: TrainingArguments, model: Any, collate: Collate, processing_class: Any, trains: bool
) -> Sequences | None:
    """Return how documents become batches; None if batches are made of whole samples as the collate function does.

    Raises ConfigurationError, with every problem, if the model or the collate function cannot take such batches.
    """
    value = partial(own_value, args)
    training, evaluation = bool(value("packing")), value("eval_packing")
    packs = training if trains or evaluation is None else bool(evaluation)
    tokens, most, multiple = (
        value("tokens_per_batch") if trains else None,
        value("max_length"),
        value("pad_to_multiple_of"),
    )
    padding_free, theirs = bool(value("padding_free")), flattens(collate)
    if not (packs or padding_free or theirs or tokens is not None or most is not None or multiple is not None):
        return None
    joins, inputs = packs or padding_free or theirs, inputs_of(model)
    if packs or padding_free:
        _refuse(model, collate, packs)
    elif theirs and trains and args.should_log and not inputs.takes_boundaries and (reason := why_not_packed(model)):
        LOGGER.warning("DataCollatorWithFlattening joins the documents of a batch in one row, but %s.", reason)
    strategy = str(value("packing_strategy"))
    long_row = packs and strategy in (BFD, BFD_SPLIT) and inputs.takes_boundaries
    flat = theirs or padding_free or long_row
    cut_off = CutOffs(most, args.should_log)
    made = _collate(collate, model, processing_class, inputs, joins, flat, multiple)
    if made is None:
        if multiple is not None:
            raise ConfigurationError(
                f"pad_to_multiple_of={multiple} is for the batches that hexloop pads, and the data_collator is a "
                f"{type(collate).__name__}; set the multiple there, and leave pad_to_multiple_of out."
            )
        made = JoinedRows(collate)
    if most is not None and not packs and tokens is None:
        made = CutSamples(made, most, cut_off.noted)
    return Sequences(packs, strategy, most, flat, tokens, multiple or 1, made, cut_off)


def _collate(
    given: Collate,
    model: Any,
    processing_class: Any,
    inputs: PackedInputs,
    joins: bool,
    flat: bool,
    multiple: int | None,
) -> Collate | None:
    """Return what collates documents; None for a user's own function that pads whole samples."""
    if flattens(given):
        return JoinedRows(given, inputs.without_cache)
    is_default = isinstance(given, DataCollatorWithPadding) or given is default_data_collator
    if isinstance(given, DocumentCollate):
        return given
    if not joins and not is_default:
        return None
    return document_collate(
        model, processing_class, "flat" if flat else "rows" if joins else "padded", multiple, inputs
    )


def document_collate(
    model: Any, processing_class: Any, layout: str, multiple: int | None = None, inputs: PackedInputs | None = None
) -> DocumentCollate:
    """Return what makes batches of documents for a model. layout: see `DocumentCollate`."""
    inputs = inputs_of(model) if inputs is None else inputs
    own = unwrapped(model)
    own = own.get_base_model() if hasattr(own, "get_base_model") else own
    return DocumentCollate(
        layout,
        _padding_token(own, processing_class),
        multiple or 1,
        inputs.first_position,
        inputs.takes_boundaries,
        copies=shifts_labels(own),
        without_cache=inputs.without_cache,
        extra=inputs.extra,
    )


def _padding_token(model: Any, processing_class: Any) -> int:
    """Return the token that rows are padded with: the tokenizer's, the model's, or 0, which no label asks for."""
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    config = getattr(model, "config", None)
    for found in (getattr(tokenizer, "pad_token_id", None), getattr(config, "pad_token_id", None)):
        if isinstance(found, int) and found >= 0:
            return found
    return 0


def _refuse(model: Any, collate: Collate, packs: bool) -> None:
    """Raise ConfigurationError if documents cannot share a row of the model, or the user's function would not join."""
    chosen = "packing=True" if packs else "padding_free=True"
    problems = list[str]()
    known = isinstance(collate, DataCollatorWithPadding | DocumentCollate) or collate is default_data_collator
    plain = type(collate).__name__ in OWN_COLLATORS and not getattr(collate, "mlm", False)
    if not (known or flattens(collate) or plain):
        problems.append(
            f"You chose {chosen} with a data_collator of type {_name_of(collate)}, but packed batches are not made of "
            "samples of one document; leave data_collator out, or pass transformers' DataCollatorWithFlattening."
        )
    if (reason := why_not_packed(model)) is not None:
        problems.append(
            f"You chose {chosen}, but {reason}; train it without, such as with train_sampling_strategy="
            "'group_by_length', which pads little."
        )
    if problems:
        raise ConfigurationError(problems)


def _name_of(collate: Any) -> str:
    return str(getattr(collate, "__name__", type(collate).__name__))


# Loaders


def needed_columns(columns: frozenset[str] | None, length_column: str) -> frozenset[str] | None:
    """Return the columns that documents need besides those that the model takes; None if all are kept."""
    return None if columns is None else columns | DOCUMENT_COLUMNS | {length_column}


def selected(dataset: Any, columns: frozenset[str] | None, length_column: str) -> Any:
    """Return a data set of documents with the columns that they need. Raises ConfigurationError if it has no tokens."""
    wanted = needed_columns(columns, length_column)
    if wanted is None or not has_own_columns(dataset):
        return dataset
    names = [name for name in dataset.column_names if name in wanted]
    if "input_ids" not in names:
        raise ConfigurationError(str(no_document(dict.fromkeys(dataset.column_names, ""))))
    return dataset.remove_columns([name for name in dataset.column_names if name not in wanted])


def packed_loader(
    dataset: Any,
    orders: Callable[[int], Order],
    sequences: Sequences,
    args: TrainingArguments,
    seed: int,
    shard: Shard,
    rows: int,
    shuffles: bool,
    grouped: bool,
    trains: bool,
    options: Mapping[str, Any],
) -> PackedLoader:
    """Return a loader of the rows of a data set with indices.

    orders: of its documents. rows: of a batch over all ranks, unless there is a budget of tokens.
    Raises ConfigurationError if the data have a state, are packed already, or if `num_train_epochs` cannot be turned
    into a number of steps.
    """
    refuse_stateful(dataset)
    refuse_packed(dataset, sequences)
    lengths = DocumentLengths(dataset, args.length_column_name)
    planner = sequences.planner(shuffles, grouped)
    size = shard.ranks.size if sequences.tokens is not None else rows

    def note(found: Sequence[int]) -> None:
        if cut := planner.packing.cuts_off(found):
            sequences.cut_off(cut, len(found))

    def make(epoch: int) -> UnitOrder:
        return UnitOrder(orders(epoch), planner, lengths, seed, epoch, note)

    epochs = _epochs_ahead(args, lengths, make, size) if trains else 1 if lengths.are_cheap else 0
    batches = PackedBatchSampler(make, size, args.dataloader_drop_last, shard, epochs)
    return PackedLoader(dataset, batches, sequences.collate, **options)


def _epochs_ahead(
    args: TrainingArguments, lengths: DocumentLengths, make: Callable[[int], UnitOrder], size: int
) -> int:
    """Return how many epochs to plan before the first step, to know how many steps they have.

    With `max_steps` none. Raises ConfigurationError, with the steps to expect, where that would take long.
    """
    if args.max_steps > 0 or not len(lengths.dataset):
        return 0
    epochs = -int(-args.num_train_epochs // 1)
    documents = len(lengths.dataset) * epochs
    if lengths.are_cheap and documents <= MOST_AHEAD:
        return epochs
    order, count = make(0), len(lengths.dataset)
    seen = min(count, WINDOW)
    units = len(order.window(0)) * count / seen
    steps = max(1, round(units * args.num_train_epochs / size / args.gradient_accumulation_steps))
    why = "would have to be packed" if lengths.are_cheap else "would have to be read"
    raise ConfigurationError(
        f"num_train_epochs={args.num_train_epochs:g} ends after a number of steps that depends on how {count} "
        f"documents are packed, and all of them {why} before the first step; set max_steps (about {steps}, by the "
        f"first {seen} documents)"
        + (
            ""
            if lengths.are_cheap
            else f", or add a column {args.length_column_name!r} with the length of each document"
        )
        + "."
    )


def stream_of_rows(
    dataset: Any,
    sequences: Sequences,
    args: TrainingArguments,
    seed: int,
    shards: list[Shard],
    rows: int,
    shuffles: bool,
    progress: Progress,
    in_turns: bool,
    options: Mapping[str, Any],
) -> StreamLoader:
    """Return a loader of the rows of a stream. rows: of a batch over all ranks, or in turns of one."""
    ranks = 1 if in_turns else shards[0].ranks.size
    planner = sequences.planner(shuffles, grouped=False)
    stream = packed_stream(dataset, planner, args.length_column_name, seed, sequences.cut_off)
    return StreamLoader(
        stream,
        batch_size=ranks if sequences.tokens is not None else rows,
        key_seed=seed,
        progress=progress,
        shards=shards,
        in_turns=in_turns,
        count=documents_in,
        drop_last=args.dataloader_drop_last,
        collate_fn=UnitCollate(sequences.collate),
        **options,
    )


def refuse_stateful(dataset: Any) -> None:
    """Raise ConfigurationError for data with indices and a state of their own, which could not be restored."""
    if is_stateful(dataset) and not is_iterable(dataset):
        raise ConfigurationError(
            f"{type(dataset).__name__} has indices and a state_dict, and packed documents are read in an order in "
            "which that state cannot be restored; leave the state out, or pass it as an IterableDataset."
        )


def refuse_packed(dataset: Any, sequences: Sequences) -> None:
    """Raise ConfigurationError for rows that were packed before and would be packed again."""
    if not sequences.packs or not len(dataset):
        return
    names: Sequence[str] = ()
    if has_own_columns(dataset):
        names = dataset.column_names
    else:
        with preserved_rng_states():  # reading may draw random numbers
            first = dataset[0]
        names = list(first) if isinstance(first, Mapping) else ()
    if "seq_lengths" in names:
        raise ConfigurationError(
            "The data are packed already: they have the column seq_lengths. Set packing=False, and padding_free=True, "
            "so that attention stays within the documents of a row."
        )


def sample_orders(orders: SampleOrders, grouped: bool) -> Callable[[int], Order]:
    """Return the orders of documents; those of `group_by_length` are random, as their windows are sorted later."""
    if not grouped:
        return orders
    return evolve(orders, sampling="random")


def described(batches: object) -> str | None:
    """See `Framework.packing`."""
    loader = batches.loader if isinstance(batches, TorchBatches) else None
    if isinstance(loader, PackedLoader):
        return loader.order.plan
    stream = loader.user_dataset if isinstance(loader, StreamLoader) else None
    return stream.planner.described if isinstance(stream, PackedStream) else None
