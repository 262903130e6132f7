"""Which checkpoints the policy keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.manifest import checkpoint_name

steps = st.lists(st.integers(min_value=0, max_value=50), max_size=12)


@pytest.mark.parametrize("limit", [None, 0, -1])
def test_without_a_limit_nothing_is_removed(limit: int | None) -> None:
    """No limit, or one below 1, keeps every checkpoint."""
    assert CheckpointPolicy(limit).surplus(range(100)) == ()


@pytest.mark.parametrize(
    ("limit", "present", "best", "goes"),
    [
        (1, [10], None, ()),
        (1, [10, 20], None, (10,)),
        (1, [10, 20], "checkpoint-10", ()),
        (1, [10, 20], "checkpoint-20", (10,)),
        (1, [10, 20, 30], "checkpoint-10", (20,)),
        (2, [10, 20, 30], "checkpoint-10", (20,)),
        (2, [10, 20, 30], "checkpoint-20", (10,)),
        (3, [10, 20, 30, 40], "checkpoint-10", (20,)),
        (2, [9, 10, 100], None, (9,)),
        (2, [100, 9, 10, 9], None, (9,)),
        (1, [10, 20, 30], "elsewhere", (10, 20)),
    ],
)
def test_the_oldest_are_removed_first(limit: int, present: list[int], best: str | None, goes: tuple[int, ...]) -> None:
    """Steps are compared as numbers; the best and the newest stay, both of them even with a limit of 1."""
    assert CheckpointPolicy(limit).surplus(present, best) == goes


def test_the_best_is_removed_if_it_need_not_be_kept() -> None:
    """With keep_best off, the best is treated like all others."""
    assert CheckpointPolicy(1, keep_best=False).surplus([10, 20], "checkpoint-10") == (10,)


def test_protected_checkpoints_stay() -> None:
    """Protected checkpoints are kept whatever the limit, and count against it."""
    policy = CheckpointPolicy(2, protected=frozenset({"checkpoint-10", "checkpoint-20"}))
    assert policy.surplus([10, 20, 30, 40]) == (30,)
    assert policy.surplus([10, 20, 30, 40, 50], is_protected="checkpoint-40".__eq__) == (30,)


def test_only_candidates_are_checked_for_protection() -> None:
    """Checking for protection reads a checkpoint's folder, so only those that would be removed are checked."""
    checked: list[str] = []

    def is_protected(name: str) -> bool:
        checked.append(name)
        return name == "checkpoint-10"

    assert CheckpointPolicy(3).surplus([10, 20, 30, 40, 50], "checkpoint-20", is_protected) == (30, 40)
    assert checked == ["checkpoint-10", "checkpoint-30", "checkpoint-40"]
    assert CheckpointPolicy(5).surplus([10, 20, 30, 40, 50], None, is_protected) == ()
    assert len(checked) == 3


@given(
    steps, st.integers(min_value=1, max_value=8), st.integers(min_value=0, max_value=50), st.sets(st.integers(0, 50))
)
def test_the_kept_checkpoints(present: list[int], limit: int, best: int, protected: set[int]) -> None:
    """Best, newest and protected stay; of the others, only the oldest are removed, as many as the limit requires."""
    policy = CheckpointPolicy(limit, protected=frozenset(map(checkpoint_name, protected)))
    goes = policy.surplus(present, checkpoint_name(best))
    kept = set(present) - set(goes)
    bound = {step for step in present if step in protected or step == best or step == max(present)}
    assert set(goes) <= set(present)
    assert bound <= kept
    assert len(kept) == min(len(set(present)), max(limit, len(bound)))
    assert all(step > max(goes) for step in kept - bound if goes)
    assert list(goes) == sorted(goes)
