"""Arguments about sequences of different lengths: packing, padding-free batches, and budgets of tokens."""

from __future__ import annotations

from hexloop.app.arguments.conversion import at_least, one_of
from hexloop.app.arguments.declaration import ArgumentGroup, argument, argument_group, rule
from hexloop.domain.wording import RefusalError

STRATEGIES = ("bfd", "bfd_split", "wrapped")
"""How documents are packed into rows."""


@argument_group
class PackingArguments(ArgumentGroup):
    """Packing, with the names of trl's SFTConfig. A document is a sample of the data set.

    packing: several documents share a row of at most `max_length` tokens. Attention stays within each document, and no
        token is predicted from the document before its own. The order of rows is a function of seed, epoch and
        position, like every order of samples. Data without an end, and runs with `max_steps`, are packed as they are
        read, in windows of 8192 documents.
    packing_strategy: `bfd` (best fit, decreasing) keeps documents whole, and cuts off what is beyond `max_length`.
        `bfd_split` makes documents of their own of what is beyond it. `wrapped` joins all documents and cuts them
        wherever a row ends.
    max_length: tokens of a row at most. Without packing, longer samples are cut off at their end.
    padding_free: a batch is one row of all its documents without any padding. With packing, `bfd` and `bfd_split` turn
        it on for models whose attention takes the boundaries of documents, such as flash attention. Other attention
        computes every pair of tokens of a row, so that the packed rows stay rows.
    tokens_per_batch: a micro-batch of a process has as many documents or rows as fit into that many tokens, in place
        of `per_device_train_batch_size`. Padding counts.
    eval_packing: whether evaluation data are packed as well; as `packing` if unset.
    pad_to_multiple_of: batches are padded to a multiple of that many tokens.
    """

    packing: bool = argument(default=False, help="let several documents share a row of max_length tokens")
    packing_strategy: str = argument(
        default="bfd",
        check=one_of(*STRATEGIES),
        help="how documents are packed: bfd (whole, cut off at max_length), bfd_split (longer ones in several pieces), "
        "wrapped (end to end, cut wherever a row ends)",
    )
    max_length: int | None = argument(
        default=None,
        check=at_least(1),
        help="tokens of a row at most; longer samples are cut off at their end; packing needs it",
    )
    padding_free: bool = argument(
        default=False,
        help="join the samples of a batch in one row without padding; packing with bfd turns it on with flash attention",
    )
    tokens_per_batch: int | None = argument(
        default=None,
        check=at_least(1),
        help="tokens of a training micro-batch of a process at most, in place of per_device_train_batch_size",
    )
    eval_packing: bool | None = argument(
        default=None, help="whether evaluation data are packed as well; as packing if unset"
    )
    pad_to_multiple_of: int | None = argument(
        default=None, check=at_least(1), help="pad batches to a multiple of that many tokens"
    )

    @rule("packing", "max_length")
    def _rows_of_some_length(self) -> None:
        if self.packing and self.max_length is None:
            raise RefusalError(
                "packing fills rows of max_length tokens", "set max_length, such as to 2048, or set packing=False"
            )

    @rule("eval_packing", "max_length")
    def _evaluation_rows_of_some_length(self) -> None:
        if self.eval_packing and self.max_length is None:
            raise RefusalError(
                "packing fills rows of max_length tokens", "set max_length, such as to 2048, or set eval_packing=False"
            )

    @rule("tokens_per_batch", "max_length")
    def _budget_of_a_row(self) -> None:
        if self.tokens_per_batch is not None and (self.max_length or 1) > self.tokens_per_batch:
            raise RefusalError(
                "a row of max_length tokens does not fit into a batch", "let tokens_per_batch be at least max_length"
            )

    @rule("tokens_per_batch", "train_sampling_strategy")
    def _one_way_to_size_batches(self) -> None:
        sampling = getattr(self, "train_sampling_strategy", "random")
        if self.tokens_per_batch is not None and str(getattr(sampling, "value", sampling)) == "batch_rebalance":
            raise RefusalError(
                "batch_rebalance decides itself how many samples a batch has",
                "leave tokens_per_batch out, or choose another strategy, such as group_by_length",
            )

    @rule("packing", "train_sampling_strategy")
    def _rows_in_an_order(self) -> None:
        sampling = str(getattr(value := getattr(self, "train_sampling_strategy", "random"), "value", value))
        if self.packing and sampling in ("group_by_length", "batch_rebalance"):
            raise RefusalError(
                "packed rows all have nearly the same length", "choose random or sequential, or set packing=False"
            )

    @rule("packing", "padding_free", "tokens_per_batch", "compile_buckets")
    def _lengths_that_are_planned(self) -> None:
        if getattr(self, "compile_buckets", None) is not None and (
            self.packing or self.padding_free or self.tokens_per_batch is not None
        ):
            raise RefusalError(
                "compile_buckets pads batches of whole samples",
                "leave compile_buckets out, and set pad_to_multiple_of for batches of fewer shapes",
            )

    @rule("reproduce", "packing", "padding_free", "tokens_per_batch", "max_length", "pad_to_multiple_of")
    def _batches_that_can_be_reproduced(self) -> None:
        given = [
            name
            for name in ("packing", "padding_free", "tokens_per_batch", "max_length", "pad_to_multiple_of")
            if getattr(self, name)
        ]
        if getattr(self, "reproduce", None) is not None and given:
            raise RefusalError("transformers does not make such batches", f"leave {' and '.join(given)} out")

    @rule("packing", "padding_free", "tokens_per_batch", "dataloader_in_order")
    def _batches_in_order(self) -> None:
        if not getattr(self, "dataloader_in_order", True) and (
            self.packing or self.padding_free or self.tokens_per_batch is not None
        ):
            raise RefusalError(
                "the documents of such batches are counted in their order", "leave dataloader_in_order out"
            )

    @rule("packing", "padding_free", "tokens_per_batch", "auto_find_batch_size")
    def _batches_that_are_sized(self) -> None:
        if getattr(self, "auto_find_batch_size", False) and self.tokens_per_batch is not None:
            raise RefusalError(
                "tokens_per_batch sizes the batches, and auto_find_batch_size only makes them of fewer samples",
                "leave one of them out",
            )
