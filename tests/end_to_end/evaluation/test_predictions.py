"""Collecting the predictions of many batches."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from hexloop.adapters.evaluator.torch import predictions
from hexloop.adapters.evaluator.torch.predictions import BatchCollector, JoinedCollector
from hexloop.domain.errors import DataError
from tests.end_to_end.evaluation.both import assert_equal


class Pair(NamedTuple):
    """A named tuple."""

    first: Any
    second: Any


def joined(*batches: Any, samples: int = 2) -> Any:
    collected = JoinedCollector(expected=samples * len(batches))
    for batch in batches:
        collected.add(batch, samples)
    return collected.result()


def test_predictions_keep_their_nesting() -> None:
    """Tuples, lists, named tuples and mappings of any type keep their structure, with arrays as leaves."""
    one, two = torch.ones(2, 3), torch.zeros(2)
    batch = OrderedDict(a=(one, [two, {"b": one}]), c=Pair(one, two))
    wanted = OrderedDict(
        a=(np.ones((4, 3), "f"), [np.zeros(4, "f"), {"b": np.ones((4, 3), "f")}]),
        c=Pair(np.ones((4, 3), "f"), np.zeros(4, "f")),
    )

    assert_equal(joined(batch, batch), wanted)
    assert joined((), ()) == ()
    assert joined(defaultdict(list, a=one)).keys() == {"a"}


def test_other_values_than_tensors_are_kept_in_lists() -> None:
    """Strings are kept by row if a batch is a list of them, otherwise by batch; numbers as an array; None as None."""
    assert joined(["a", "b"], ["c"]) == ["a", "b", "c"]
    assert joined({"text": "a"}, {"text": "b"}) == {"text": ["a", "b"]}
    assert joined((None, torch.ones(1)), (None, torch.ones(1)))[0] is None
    np.testing.assert_array_equal(joined(0.5, 1), [0.5, 1.0])
    np.testing.assert_array_equal(joined(np.ones(2), np.zeros(1)), [1.0, 1.0, 0.0])


def test_bfloat16_becomes_float32() -> None:
    """Numpy has no bfloat16; float16 is kept."""
    assert joined(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32
    assert joined(torch.ones(2, dtype=torch.float16)).dtype == np.float16


def test_tensors_are_detached() -> None:
    """A user's prediction step may return tensors that require grad."""
    assert joined(torch.ones(2, requires_grad=True) * 2).tolist() == [2.0, 2.0]


def test_no_predictions_are_none() -> None:
    """An evaluation without predictions has no arrays."""
    assert JoinedCollector().result() is None
    assert BatchCollector().result() is None


def test_models_may_reuse_an_output_buffer() -> None:
    """A copy is kept, so the model may reuse its output buffer for the next batch."""
    collected, buffer = JoinedCollector(expected=4), torch.zeros(2)
    for value in (1.0, 2.0):
        collected.add(buffer.fill_(value), 2)

    assert collected.result().tolist() == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ((torch.ones(1),), (torch.ones(1), torch.ones(1)), "a tuple of 2, and an earlier one a tuple of 1"),
        ((torch.ones(1),), [torch.ones(1)], "a list of 1, and an earlier one a tuple of 1"),
        ({"a": torch.ones(1)}, {"b": torch.ones(1)}, "a dict of b, and an earlier one a dict of a"),
        ({"a": torch.ones(1)}, torch.ones(1), "a Tensor, and an earlier one a dict of a"),
        (torch.ones(1), "text", "a str, and an earlier one a ndarray"),
        (torch.ones(1), {"a": 1}, "a dict of a, and an earlier one a ndarray"),
        (torch.ones(1), [torch.ones(1), torch.ones(2)], "a list of 2, and an earlier one a ndarray"),
    ],
    ids=str,
)
def test_mismatched_batches_are_refused(first: Any, second: Any, said: str) -> None:
    """The error names what came, what came before, and how to fix it."""
    with pytest.raises(DataError, match=said):
        joined(first, second)


class Elsewhere(Tensor):
    """A tensor that claims to be on another device until it is moved to the host."""

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.as_subclass(Tensor)


def to_another_device(tensor: Tensor) -> Tensor:
    """To a GPU if there is one."""
    return tensor.cuda() if torch.cuda.is_available() else tensor.as_subclass(Elsewhere)


@pytest.mark.parametrize("form", ["rows", "numbers", "widths"])
def test_tensors_are_moved_to_the_host_together(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are moved together when they reach a size or a count, or only on request."""
    monkeypatch.setattr(predictions, "MOST_BYTES", 64)
    monkeypatch.setattr(predictions, "MOST_TENSORS", 8)
    moved: list[int] = []
    copy = predictions.to_array

    def counted(tensor: Tensor) -> Any:
        moved.append(tensor.numel())
        return copy(tensor)

    monkeypatch.setattr(predictions, "to_array", counted)
    make: dict[str, Callable[[int], Tensor]] = {
        "rows": lambda index: torch.full((2, 2), float(index)),
        "numbers": lambda index: torch.tensor(float(index)),
        "widths": lambda index: torch.full((1, 1 + index % 2), float(index)),
    }
    tensors = [make[form](index) for index in range(21)]
    every = sum(tensor.numel() for tensor in tensors)
    plain, many, asked = JoinedCollector(), JoinedCollector(), JoinedCollector(waits=True)
    for tensor in tensors:
        plain.add(tensor, 2)
    moved.clear()
    for tensor in tensors:
        many.add(to_another_device(tensor), 2)
    assert 0 < sum(moved) < every
    assert len(moved) <= (every if form == "widths" else 5)
    moved.clear()
    for tensor in tensors:
        asked.add(to_another_device(tensor), 2)
    assert moved == []
    asked.to_host()
    assert sum(moved) == every

    wanted = plain.result()
    np.testing.assert_array_equal(asked.result(), wanted)
    np.testing.assert_array_equal(many.result(), wanted)


def test_separate_batches_are_moved_on_request() -> None:
    """All others are moved at the end."""
    apart = BatchCollector()
    for value in (1.0, 2.0):
        apart.add({"a": to_another_device(torch.full((2,), value))}, 2)
        if value == 1.0:
            apart.to_host()

    assert_equal(apart.result(), [{"a": np.full(2, 1.0, "f")}, {"a": np.full(2, 2.0, "f")}])


def boxes(*counts: int) -> list[dict[str, Tensor]]:
    """Return a dictionary for each row, with a number of boxes of its own."""
    return [{"boxes": torch.full((count, 4), float(count))} for count in counts]


def test_what_cannot_be_joined_by_meaning_is_kept_by_batch() -> None:
    """A dictionary or a tensor of its own size for each row: the rows of one batch never mix with those of another."""
    kept = joined((torch.ones(2), boxes(1, 3)), (torch.zeros(2), boxes(2, 5)))
    assert kept[0].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert [[len(row["boxes"]) for row in batch] for batch in kept[1]] == [[1, 3], [2, 5]]
    assert isinstance(kept[1][0][0]["boxes"], np.ndarray)

    ragged = joined([torch.ones(1), torch.ones(3)], [torch.ones(4), torch.ones(2)])
    assert [[len(row) for row in batch] for batch in ragged] == [[1, 3], [4, 2]]
    last = joined({"labels": boxes(1, 3)}, {"labels": boxes(2)})
    assert [len(batch) for batch in last["labels"]] == [2, 1]


def test_the_layers_of_a_model_are_joined() -> None:
    """The positions of a sequence whose tensors have the rows of the batch have a meaning."""
    layers = [torch.ones(2, 3), torch.zeros(2, 5)]
    assert [each.shape for each in joined(layers, layers)] == [(4, 3), (4, 5)]
    assert [each.shape for each in joined(tuple(layers), tuple(layers))] == [(4, 3), (4, 5)]
