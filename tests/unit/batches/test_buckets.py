"""Batches are padded to planned lengths as their collate function pads; what cannot be padded so is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithFlattening,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers import DataCollatorWithPadding as TheirDataCollatorWithPadding

from hexloop import DataCollatorWithPadding, default_data_collator
from hexloop.adapters.batches.torch.buckets import BucketCollate
from hexloop.adapters.batches.torch.lengths import planned_collate
from hexloop.domain.errors import ConfigurationError, DataError
from tests.end_to_end.parity.scripts.texts import VOCABULARY, make_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:You're using a:UserWarning")


def planned(
    data: Any, collate: Callable[[Any], Any], most: int = 2, rows: int | None = 2, main_input: str = "input_ids"
) -> BucketCollate:
    return planned_collate(data, data, collate, most, rows, 2, "length", main_input)


def sample(length: int, seed: int = 0, labels: int = 0, kind: str = "") -> dict[str, Any]:
    """Return a sample of so many tokens, with as many labels for tokens, or labels of another length."""
    source = random.Random(1000 * length + seed)
    words = [source.randrange(5, len(VOCABULARY)) for _ in range(max(length, labels))]
    made: dict[str, Any] = {"input_ids": words[:length], "attention_mask": [1] * length}
    if kind == "tokens":
        made["labels"] = [word % 3 for word in words[:length]]
    if kind == "sequence":
        made["labels"] = words[:labels]
    if kind == "row":
        made["label"] = words[0] % 2
    return made


def tokenizer(left: bool = False) -> Any:
    made = make_tokenizer()
    made.padding_side = "left" if left else "right"
    return made


def t5() -> Any:
    """Return a model that makes the inputs of its decoder from labels."""
    config = T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=30)
    config.decoder_start_token_id = 1
    return T5ForConditionalGeneration(config)


COLLATORS: dict[str, tuple[Callable[[], Any], str]] = {
    "hexloop's": (lambda: DataCollatorWithPadding(tokenizer()), "row"),
    "hexloop's on the left": (lambda: DataCollatorWithPadding(tokenizer(left=True)), "row"),
    "transformers'": (lambda: TheirDataCollatorWithPadding(tokenizer()), "row"),
    "to a multiple": (lambda: TheirDataCollatorWithPadding(tokenizer(), pad_to_multiple_of=4), "row"),
    "tokens": (lambda: DataCollatorForTokenClassification(tokenizer()), "tokens"),
    "tokens on the left": (lambda: DataCollatorForTokenClassification(tokenizer(left=True)), "tokens"),
    "sequence to sequence": (lambda: DataCollatorForSeq2Seq(tokenizer()), "sequence"),
    "sequence to sequence with inputs of the decoder": (
        lambda: DataCollatorForSeq2Seq(tokenizer(), model=t5()),
        "sequence",
    ),
    "language model": (lambda: DataCollatorForLanguageModeling(tokenizer(), mlm=False), ""),
}


@pytest.mark.parametrize("name", COLLATORS)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 7)), min_size=2, max_size=8), st.integers(1, 4), st.data())
def test_batches_are_padded_as_by_a_longer_sample(
    name: str, lengths: list[tuple[int, int]], most: int, choices: Any
) -> None:
    """A batch has one of at most so many shapes, and is what the collator makes of it with a sample of that length."""
    make, kind = COLLATORS[name]
    collate = make()
    data = [sample(length, seed, labels, kind) for seed, (length, labels) in enumerate(lengths)]
    padding = planned(data, collate, most)
    chosen = choices.draw(st.lists(st.sampled_from(data), min_size=1, max_size=4))
    batch = padding([dict(row) for row in chosen])

    assert len(padding.buckets) <= most
    room = {name: tuple(tensor.shape[1:]) for name, tensor in batch.items()}
    longer = sample(room["input_ids"][0], 99, sum(room.get("labels", ())), kind)
    expected = collate([dict(row) for row in chosen] + [longer])
    assert batch.keys() == expected.keys()
    for field, tensor in batch.items():
        assert tensor.dtype == expected[field].dtype
        assert torch.equal(tensor, expected[field][:-1]), field
    if padding.axes:
        sizes = tuple(batch[field].shape[1 + at] for field, at in padding.axes)
        assert sizes in padding.buckets
        alone = collate([dict(row) for row in chosen])
        needed = tuple(alone[field].shape[1 + at] for field, at in padding.axes)
        fitting = [each for each in padding.buckets if all(map(int.__ge__, each, needed))]
        assert sizes == fitting[0]


def test_random_collators_draw_as_without_buckets() -> None:
    """Tokens are masked as in the batch without buckets; planning draws from no stream of the process."""
    data = [sample(length, length) for length in (3, 9, 4, 12, 12, 5)]
    collate = DataCollatorForLanguageModeling(tokenizer(), mlm_probability=0.5)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    padding = planned(data, collate)
    assert torch.equal(torch.get_rng_state(), before)
    batch = padding(data[:1] + data[2:3])
    torch.manual_seed(1)
    alone = collate(data[:1] + data[2:3])

    room = batch["input_ids"].shape[1]
    assert room > 4
    for field, value in {"input_ids": 0, "attention_mask": 0, "labels": -100}.items():
        assert torch.equal(batch[field], pad(alone[field], (0, room - 4), value=value))


def square_masks(rows: list[Any]) -> dict[str, Tensor]:
    """Return features on the left, and a mask with two dimensions of the length of the batch."""
    longest = max(len(row["x"]) for row in rows)
    x = [pad(row["x"], (0, 0, longest - len(row["x"]), 0), value=0.5) for row in rows]
    masks = [torch.zeros(longest, longest, dtype=torch.bool) for _ in rows]
    for mask, row in zip(masks, rows, strict=True):
        mask[longest - len(row["x"]) :, longest - len(row["x"]) :] = True
    return {"x": torch.stack(x), "mask": torch.stack(masks), "scale": torch.tensor(2.0)}


def test_features_and_square_masks_are_padded() -> None:
    """A field may have features, or the length twice; one without rows stays as it is."""
    data = [{"x": torch.randn(length, 3)} for length in (2, 5, 3, 8)]
    padding = planned(data, square_masks, most=1)
    batch = padding(data[:2])

    assert padding.axes == (("x", 0), ("mask", 0), ("mask", 1))
    expected = square_masks([data[0], data[1], data[3]])
    assert torch.equal(batch["x"], expected["x"][:2])
    assert torch.equal(batch["mask"], expected["mask"][:2])
    assert batch["scale"] == 2


def test_a_column_of_lengths_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a few samples are collated; the plan is that of reading them all, also if the collator rounds and cuts."""
    lengths = [3 + number * 7 % 50 for number in range(500)]
    data = [sample(length) for length in lengths]
    with_lengths = [{**row, "length": length} for row, length in zip(data, lengths, strict=True)]
    collate = TheirDataCollatorWithPadding(tokenizer(), pad_to_multiple_of=8)
    collated: list[int] = []

    def counting(rows: list[Any]) -> Any:
        collated.append(len(rows))
        return collate([{name: row[name] for name in row if name != "length"} for row in rows])

    counting.pad_to_multiple_of = 8  # type: ignore[attr-defined]
    quick = planned(with_lengths, counting, most=3)
    assert len(collated) < 30

    assert quick.buckets == planned(data, collate, most=3).buckets
    assert quick.data == planned(data, collate, most=3).data
    assert quick.buckets[-1][0] == 56

    def cutting(rows: list[Any]) -> Any:
        return DataCollatorWithPadding(tokenizer())(
            [{name: row[name][:20] for name in ("input_ids", "attention_mask")} for row in rows]
        )

    assert planned(with_lengths, cutting, most=3).buckets[-1] == (20, 20)
    assert planned(with_lengths, cutting, most=3).buckets == planned(data, cutting, most=3).buckets


def test_samples_of_one_shape_need_no_padding() -> None:
    padding = planned([sample(4, seed) for seed in range(4)], default_data_collator)
    assert (padding.axes, padding.buckets) == ((), ((),))
    assert padding([sample(4), sample(4)])["input_ids"].shape == (2, 4)


@pytest.mark.parametrize("other", [{"length": 9}, {"fields": "tokens"}])
def test_a_batch_that_was_not_planned_is_an_error(other: dict[str, Any]) -> None:
    """A longer sample, or one with other fields, than those that were read for the plan."""
    padding = planned([sample(length) for length in (2, 6, 4)], DataCollatorWithPadding(tokenizer()))
    with pytest.raises(DataError, match=r"at most the shapes input_ids \(6,\).*not those whose lengths were counted"):
        padding([sample(other.get("length", 4), kind=other.get("fields", ""))])


def numbered(rows: list[Any]) -> dict[str, Tensor]:
    """Number the positions, also where a sample is padded."""
    longest = max(len(row["input_ids"]) for row in rows)
    tokens = torch.stack([pad(torch.tensor(row["input_ids"]), (0, longest - len(row["input_ids"]))) for row in rows])
    return {"input_ids": tokens, "position_ids": torch.arange(longest).expand(len(rows), longest)}


def last_repeated(rows: list[Any]) -> dict[str, Tensor]:
    """Pad with the last token of each sample."""
    longest = max(len(row["input_ids"]) for row in rows)
    tokens = [row["input_ids"] + row["input_ids"][-1:] * (longest - len(row["input_ids"])) for row in rows]
    return {"input_ids": torch.tensor(tokens)}


def in_pairs(rows: list[Any]) -> dict[str, Tensor]:
    """Need two samples."""
    first, _ = rows
    return {"input_ids": torch.tensor([first["input_ids"]])}


def joined(rows: list[Any]) -> dict[str, Tensor]:
    """Make a length that is not that of the longest sample."""
    total = sum(len(row["input_ids"]) for row in rows)
    return {"input_ids": torch.zeros(len(rows), total, dtype=torch.int64)}


def images(rows: list[Any]) -> dict[str, Tensor]:
    return {"pixel_values": torch.zeros(len(rows), 3, 8, 8)}


def flattening(rows: list[Any]) -> Any:
    return DataCollatorWithFlattening()(rows)  # type: ignore[no-untyped-call]


VARYING = [sample(length, length) for length in (2, 6, 4, 7)]


@pytest.mark.parametrize(
    ("data", "collate", "told"),
    [
        (VARYING, numbered, "does not pad 'position_ids' with one value"),
        (VARYING, last_repeated, "does not pad 'input_ids' with one value"),
        (VARYING, in_pairs, "fails with sample 0 (ValueError"),
        (VARYING, joined, "of the lengths 2 and 7 of samples 0 and 3, and of length 9 of both together"),
        (VARYING, default_data_collator, "fails with samples 0 and 3 (DataError"),
        (VARYING, flattening, "first dimension is not that of the samples"),
        (VARYING, images, "'pixel_values' has the shape (3, 8, 8), and not that of a sequence"),
        (VARYING, list, "returns a value of type list; let it return a dictionary"),
        (VARYING, lambda rows: {"a": {"b": torch.ones(len(rows), 2)}}, "tensors within 'a'"),
        (
            [*VARYING, sample(3, kind="tokens")],
            DataCollatorForTokenClassification(tokenizer()),
            "let it return the same fields",
        ),
        (
            [{**row, "length": 5} for row in VARYING],
            "padding",
            "says 5 for sample 2, of which the data_collator makes the length 4",
        ),
        ([{**row, "length": "long"} for row in VARYING], "padding", "has 'long' for sample 0, which is not a length"),
    ],
)
def test_what_cannot_be_padded_is_refused(data: Any, collate: Any, told: str) -> None:
    """One sentence says what is wrong with the collate function or the data, and what to do."""

    def without_length(rows: list[Any]) -> Any:
        return DataCollatorWithPadding(tokenizer())([{name: row[name] for name in list(row)[:2]} for row in rows])

    with pytest.raises(ConfigurationError) as caught:
        planned(data, without_length if collate == "padding" else collate)
    (problem,) = caught.value.problems
    assert problem.startswith("compile_buckets=2 cannot pad the batches: ")
    assert told in problem
    assert problem.endswith(".")
