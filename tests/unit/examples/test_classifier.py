from __future__ import annotations

import importlib
import inspect

import numpy as np
import pytest

from docs.examples.classifier import (
    PACKAGES,
    PADDING,
    START,
    UNKNOWN,
    accuracy,
    docstrings,
    held_out_split,
    texts,
    tokenizer,
    train_split,
)
from hexloop import DataCollatorWithPadding, EvalPrediction


def test_docstrings_are_unique_across_splits() -> None:
    """No docstring occurs twice, in one split or in both."""
    training, held_out = ([text for text, _ in part] for part in texts())
    assert len(set(training) | set(held_out)) == len(training) + len(held_out)


def test_a_fifth_of_each_package_is_held_out() -> None:
    """Each package has about a fifth of its docstrings held out, and every package has some."""
    training, held_out = (np.bincount([label for _, label in part], minlength=len(PACKAGES)) for part in texts())
    assert ((training + held_out) // 5 == held_out).all()
    assert held_out.min() > 5


def test_docstrings_equal_those_of_imported_objects() -> None:
    """Docstrings read from source equal those of the imported objects."""
    read = set(docstrings("logging"))
    logging = importlib.import_module("logging")
    shown = [inspect.getdoc(each) for each in (logging.Logger, logging.Logger.addHandler, logging.getLogger)]
    assert all(text in read for text in shown)


def test_vocabulary_has_the_most_frequent_words() -> None:
    """The vocabulary has the given size; text is lowercased and split at punctuation and underscores."""
    words = tokenizer(500)
    assert len(words) == 500
    tokens = words.convert_ids_to_tokens(words("The event_loop, Qwxyz")["input_ids"])
    assert tokens == [START, "the", "event", "_", "loop", ",", UNKNOWN]


def test_rows_are_truncated_and_padded() -> None:
    """Rows are truncated; a batch is padded to its longest row, and padding is masked."""
    words = tokenizer(500, longest=16)
    train, held_out = train_split(words), held_out_split(words)
    assert (len(train), len(held_out)) == tuple(map(len, texts()))
    rows = [train[index] for index in range(50)]
    lengths = [len(row["input_ids"]) for row in rows if isinstance(row["input_ids"], list)]
    assert max(lengths) == 16 > min(lengths)
    batch = DataCollatorWithPadding(words)(rows)
    assert batch["attention_mask"].sum(dim=1).tolist() == lengths
    padding = words.convert_tokens_to_ids(PADDING)
    assert ((batch["input_ids"] == padding) == (batch["attention_mask"] == 0)).all()
    assert batch["labels"].tolist() == [label for _, label in texts()[0][:50]]


def test_accuracy_is_reported_with_a_baseline() -> None:
    """Two of four rows are right; always predicting the second class would get three."""
    logits = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    measured = accuracy(EvalPrediction(logits, np.array([1, 1, 1, 0])))
    assert measured == {"accuracy": pytest.approx(0.5), "majority": pytest.approx(0.75)}
