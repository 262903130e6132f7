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


def test_no_docstring_is_in_both_parts() -> None:
    """Every docstring comes once."""
    training, held_out = ([text for text, _ in part] for part in texts())
    assert len(set(training) | set(held_out)) == len(training) + len(held_out)


def test_a_fifth_of_each_package_is_held_out() -> None:
    """Each package's docstrings are split alike, to within one, and every package has some."""
    training, held_out = (np.bincount([label for _, label in part], minlength=len(PACKAGES)) for part in texts())
    assert ((training + held_out) // 5 == held_out).all()
    assert held_out.min() > 5


def test_docstrings_are_those_that_python_shows() -> None:
    """What is read from a package's source is what its documented objects carry when it is imported."""
    read = set(docstrings("logging"))
    logging = importlib.import_module("logging")
    shown = [inspect.getdoc(each) for each in (logging.Logger, logging.Logger.addHandler, logging.getLogger)]
    assert all(text in read for text in shown)


def test_the_most_frequent_words_are_known() -> None:
    """The vocabulary has the size asked for; texts are split at marks and underscores, in lower case."""
    words = tokenizer(500)
    assert len(words) == 500
    tokens = words.convert_ids_to_tokens(words("The event_loop, Qwxyz")["input_ids"])
    assert tokens == [START, "the", "event", "_", "loop", ",", UNKNOWN]


def test_rows_are_cut_and_padded() -> None:
    """No row is longer than was asked for; a batch is padded to its longest row, and the padding is masked."""
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


def test_accuracy_stands_beside_what_guessing_gets() -> None:
    """Two of four rows are right; always naming the second class would be right three times."""
    logits = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    measured = accuracy(EvalPrediction(logits, np.array([1, 1, 1, 0])))
    assert measured == {"accuracy": pytest.approx(0.5), "majority": pytest.approx(0.75)}
