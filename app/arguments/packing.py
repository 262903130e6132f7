"""Arguments about sequences of different lengths: packing, padding-free batches, and budgets of tokens."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments.choices import PackingText
from hexloop.app.arguments.conversion import at_least, one_of
from hexloop.app.arguments.declaration import ArgumentGroup, ArgumentRule, argument, argument_group, rule
from hexloop.domain.wording import RefusalError

STRATEGIES = ("bfd", "bfd_split", "wrapped")
"""How documents are packed into rows."""

PACKAGE = "hexloop"


def own_value(arguments: Any, name: str) -> Any:
    """Return the value of one of these arguments, or its default if a class of the user's has declared the field again.

    trl's SFTConfig, and scripts with a `max_length` of their own, give such a field to their own code.
    """
    for kind in type(arguments).__mro__:
        if name in vars(kind).get("__annotations__", {}) and kind.__module__.partition(".")[0] != PACKAGE:
            return DEFAULTS[name]
    return getattr(arguments, name)


DEFAULTS = {
    "packing": False,
    "packing_strategy": "bfd",
    "max_length": None,
    "padding_free": False,
    "tokens_per_batch": None,
    "eval_packing": None,
    "pad_to_multiple_of": None,
}
"""The values with which these arguments do nothing."""

BUCKETS = (
    "compile_buckets pads batches of whole samples to planned lengths",
    "leave compile_buckets out, and set pad_to_multiple_of for batches of fewer shapes",
)

THEIRS = ("transformers' Trainer does not make such batches", "leave {name} out")


def _needs_length(name: str) -> ArgumentRule:
    @rule(name, "max_length")
    def check(arguments: Any) -> None:
        if own_value(arguments, name) and own_value(arguments, "max_length") is None:
            raise RefusalError(
                "packing fills rows of max_length tokens", f"set max_length, such as to 2048, or set {name}=False"
            )

    return check


def _not_with(name: str, other: str, refusal: tuple[str, str]) -> ArgumentRule:
    @rule(other, name)
    def check(arguments: Any) -> None:
        if getattr(arguments, other, None) is not None and own_value(arguments, name) != DEFAULTS[name]:
            raise RefusalError(refusal[0], refusal[1].format(name=name))

    return check


def _sampling(arguments: Any) -> str:
    value = getattr(arguments, "train_sampling_strategy", "random")
    return str(getattr(value, "value", value))


@argument_group
class PackingArguments(ArgumentGroup):
    """Sequences of different lengths.

    The names are those of trl's SFTConfig. A document is a sample of the data set.

    Args:
        packing: several documents share a row of at most `max_length` tokens. Attention stays within each document, and
            no token is predicted from the document before its own. The order of rows is a function of seed, epoch and
            position, like every order of samples. Data without an end, and runs with `max_steps`, are packed as they
            are read, in windows of 8192 documents.
        packing_strategy: `bfd` (best fit, decreasing) keeps documents whole, and cuts off what is beyond `max_length`.
            `bfd_split` makes documents of their own of what is beyond it. `wrapped` joins all documents and cuts them
            wherever a row ends.
        max_length: tokens of a row at most. Without packing, longer samples are cut off at their end.
        padding_free: a batch is one row of all its documents without any padding. With packing, `bfd` and `bfd_split`
            turn it on for models whose attention takes the boundaries of documents, such as flash attention. Other
            attention computes every pair of tokens of a row, so that the packed rows stay rows.
        tokens_per_batch: a micro-batch of a process has as many documents or rows as fit into that many tokens, in
            place of `per_device_train_batch_size`. Padding counts.
        eval_packing: whether evaluation data are packed as well; as `packing` if unset.
        pad_to_multiple_of: batches are padded to a multiple of that many tokens.
    """

    packing: bool = argument(default=False, help="let several documents share a row of max_length tokens")
    packing_strategy: PackingText = argument(
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
        help="join the samples of a batch in one row without padding; with flash attention, bfd packing turns it on",
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

    _row_length = _needs_length("packing")
    _evaluation_row_length = _needs_length("eval_packing")

    @property
    def makes_batches(self) -> bool:
        """Whether these arguments decide how samples become batches."""
        return any(own_value(self, name) != value for name, value in DEFAULTS.items() if name != "packing_strategy")

    @rule("tokens_per_batch", "max_length")
    def _budget_of_a_row(self) -> None:
        budget = own_value(self, "tokens_per_batch")
        if budget is not None and (own_value(self, "max_length") or 1) > budget:
            raise RefusalError(
                "a row of max_length tokens does not fit into a batch", "let tokens_per_batch be at least max_length"
            )

    @rule("packing", "train_sampling_strategy")
    def _rows_in_an_order(self) -> None:
        if own_value(self, "packing") and _sampling(self) in ("group_by_length", "batch_rebalance"):
            raise RefusalError(
                "packed rows all have nearly the same length", "choose random or sequential, or set packing=False"
            )

    @rule("tokens_per_batch", "train_sampling_strategy")
    def _one_way_to_size_batches(self) -> None:
        if own_value(self, "tokens_per_batch") is not None and _sampling(self) == "batch_rebalance":
            raise RefusalError(
                "batch_rebalance decides itself how many samples a batch has",
                "leave tokens_per_batch out, or choose another strategy, such as group_by_length",
            )

    @rule("tokens_per_batch", "auto_find_batch_size")
    def _batches_that_are_sized(self) -> None:
        if getattr(self, "auto_find_batch_size", False) and own_value(self, "tokens_per_batch") is not None:
            raise RefusalError(
                "auto_find_batch_size makes batches of fewer samples, and tokens_per_batch sizes them by tokens",
                "leave one of them out",
            )

    _packed_buckets = _not_with("packing", "compile_buckets", BUCKETS)
    _padding_free_buckets = _not_with("padding_free", "compile_buckets", BUCKETS)
    _budget_and_buckets = _not_with("tokens_per_batch", "compile_buckets", BUCKETS)
    _reproduced_packing = _not_with("packing", "reproduce", THEIRS)
    _reproduced_padding = _not_with("padding_free", "reproduce", THEIRS)
    _reproduced_budget = _not_with("tokens_per_batch", "reproduce", THEIRS)
    _reproduced_length = _not_with("max_length", "reproduce", THEIRS)
    _reproduced_multiple = _not_with("pad_to_multiple_of", "reproduce", THEIRS)

    @rule("packing", "dataloader_in_order")
    def _rows_of_batches_in_order(self) -> None:
        if own_value(self, "packing") and not getattr(self, "dataloader_in_order", True):
            raise RefusalError("the documents of batches are counted in their order", "leave dataloader_in_order out")

    @rule("tokens_per_batch", "dataloader_in_order")
    def _batches_in_order(self) -> None:
        if own_value(self, "tokens_per_batch") is not None and not getattr(self, "dataloader_in_order", True):
            raise RefusalError("the documents of batches are counted in their order", "leave dataloader_in_order out")
