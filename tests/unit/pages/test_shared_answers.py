"""Many viewers of one page: it is made once, and all of them are sent the same bytes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from hexloop.app.pages import service
from hexloop.app.pages.service import SharedAnswers

PAGE = ("page", "a")


class Maker:
    """Makes answers of a version, when it may."""

    def __init__(self) -> None:
        self.count, self.version, self.allowed = 0, "1", threading.Event()
        self.allowed.set()

    def __call__(self) -> tuple[str, str]:
        self.count += 1
        assert self.allowed.wait(30)
        return self.version, f"page {self.version}"


def test_viewers_who_ask_together_share_an_answer() -> None:
    """One is made for a hundred, who get the same object; one who asks later for the same version, too."""
    make, answers = Maker(), SharedAnswers()

    async def ask() -> list[Any]:
        make.allowed.clear()
        viewers = [asyncio.create_task(answers.get(PAGE, "1", make)) for _ in range(100)]
        await asyncio.sleep(0.05)
        make.allowed.set()
        return [*(await asyncio.gather(*viewers)), await answers.get(PAGE, "1", make)]

    found = asyncio.run(ask())
    assert make.count == 1
    assert {id(each.body) for each in found} == {id(found[0].body)}
    assert found[0].body == b"page 1"


def test_an_answer_is_made_again_for_another_version_and_when_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages on a page are then right again."""
    make, answers = Maker(), SharedAnswers()

    async def ask(version: str) -> str:
        return (await answers.get(PAGE, version, make)).version

    async def all_of_them() -> list[str]:
        first = await ask("1")
        make.version = "2"
        second = await ask("2")
        monkeypatch.setattr(service, "FRESH_FOR", 0.0)
        return [first, second, await ask("2")]

    assert asyncio.run(all_of_them()) == ["1", "2", "2"]
    assert make.count == 3


def test_a_viewer_who_leaves_does_not_end_the_answer_of_others() -> None:
    """And an error reaches all, and is not kept."""
    make, answers = Maker(), SharedAnswers()

    def fail() -> tuple[str, str]:
        raise ValueError("unreadable")

    async def ask() -> Any:
        make.allowed.clear()
        leaving, staying = (asyncio.create_task(answers.get(PAGE, "1", make)) for _ in range(2))
        await asyncio.sleep(0.05)
        leaving.cancel()
        await asyncio.sleep(0)
        make.allowed.set()
        found = await staying
        failed = await asyncio.gather(*(answers.get(("other",), "1", fail) for _ in range(3)), return_exceptions=True)
        return found, failed, await answers.get(("other",), "1", make)

    found, failed, after = asyncio.run(ask())
    assert found.body == after.body == b"page 1"
    assert [type(each) for each in failed] == [ValueError] * 3


@pytest.mark.parametrize(("name", "most"), [("MOST_ANSWERS", 2), ("MOST_ANSWER_BYTES", 12)])
def test_few_answers_are_kept(monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    """Those that were made last, up to a number and up to their bytes."""
    monkeypatch.setattr(service, name, most)
    make, answers = Maker(), SharedAnswers()
    makes: Callable[[], tuple[str, str]] = make

    async def ask() -> None:
        for number in range(5):
            await answers.get(("page", str(number)), "1", makes)

    asyncio.run(ask())
    assert [key[1] for key in answers.kept] == ["3", "4"]
