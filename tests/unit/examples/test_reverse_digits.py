from __future__ import annotations

import numpy as np
import pytest

from docs.examples.reverse_digits import (
    END,
    LONGEST,
    PADDING,
    SHORTEST,
    exact_match,
    held_out_split,
    tokenizer,
    train_split,
)
from docs.examples.reverse_digits import rows as drawn
from hexloop import EvalPrediction


def test_rows_are_unique_across_splits() -> None:
    """Rows are unique and of all lengths, and held-out rows are not trained on."""
    train, held_out = train_split(count=300, held_out=50), held_out_split(50)
    assert len(train) == len(set(train.rows)) == 300
    assert not set(train.rows) & set(held_out.rows)
    assert {len(row) for row in drawn(300)} == set(range(SHORTEST, LONGEST + 1))


def test_labels_are_the_inputs_in_reverse() -> None:
    """Inputs and labels end with the end token and decode to their digits."""
    data, words = held_out_split(20), tokenizer()
    end = words.convert_tokens_to_ids(END)
    for index, row in enumerate(data.rows):
        sample = data[index]
        assert sample["input_ids"][-1] == sample["labels"][-1] == end
        assert sample["labels"][:-1] == sample["input_ids"][-2::-1]
        assert words.decode(sample["input_ids"], skip_special_tokens=True) == row


def test_only_exact_rows_count() -> None:
    """One of two rows is generated exactly, whatever the padding of either side."""
    words = tokenizer()
    pad, end, one, two = map(words.convert_tokens_to_ids, (PADDING, END, "1", "2"))
    generated = np.array([[pad, one, two, end, pad], [pad, two, two, end, -100]])
    labels = np.array([[one, two, end, -100], [two, one, end, pad]])
    assert exact_match(EvalPrediction(generated, labels)) == {"exact_match": pytest.approx(0.5)}
