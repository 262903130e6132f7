"""What a hub does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hexloop.domain.errors import StorageError
from hexloop.ports.files import File
from hexloop.ports.hub import Hub


def content(files: Iterator[File]) -> dict[str, bytes]:
    """The bytes of each file by its path."""
    return {file.path: b"".join(file.chunks) for file in files}


class HubContract:
    """The suite of the Hub port."""

    @pytest.fixture
    def hub(self) -> Hub:
        """The adapter under test: a hub on which nothing is published as "someone/model" or "someone/other"."""
        raise NotImplementedError

    def test_what_is_published_can_be_fetched(self, hub: Hub) -> None:
        """The files come back with their paths and bytes, whatever chunks they went in."""
        hub.publish(
            "someone/model",
            [File("config.json", [b"{", memoryview(b"}")]), File("folder/weights", [bytes(1000)]), File("empty", [])],
            "first",
        )

        fetched = content(hub.fetch("someone/model"))
        assert fetched == {"config.json": b"{}", "folder/weights": bytes(1000), "empty": b""}

    def test_the_newest_version_is_fetched_unless_another_is_named(self, hub: Hub) -> None:
        """Versions have names of their own and stay what they were; the last one published is the newest."""
        names = [hub.publish("someone/model", [File(f"file {n}", [bytes([n])])], f"number {n}") for n in range(12)]

        assert len(set(names)) == 12
        assert content(hub.fetch("someone/model")) == {"file 11": b"\x0b"}
        for number, name in enumerate(names):
            assert content(hub.fetch("someone/model", name)) == {f"file {number}": bytes([number])}

    def test_models_are_kept_apart(self, hub: Hub) -> None:
        """Publishing one model changes nothing of another."""
        hub.publish("someone/model", [File("a", [b"1"])], "one")
        hub.publish("someone/other", [File("b", [b"2"])], "two")

        assert content(hub.fetch("someone/model")) == {"a": b"1"}
        assert content(hub.fetch("someone/other")) == {"b": b"2"}

    def test_what_was_not_published_is_refused(self, hub: Hub) -> None:
        """An unknown name or version raises a StorageError that names it."""
        with pytest.raises(StorageError, match="someone/model"):
            hub.fetch("someone/model")
        hub.publish("someone/model", [File("a", [b"1"])], "one")
        with pytest.raises(StorageError, match="no such version"):
            hub.fetch("someone/model", "no such version")

    def test_a_failure_publishes_nothing(self, hub: Hub) -> None:
        """Where a file cannot be read to its end, the newest version is what it was before."""

        def breaking_off() -> Iterator[bytes]:
            yield b"some"
            raise EOFError

        hub.publish("someone/model", [File("a", [b"1"])], "one")
        with pytest.raises(EOFError):
            hub.publish("someone/model", [File("a", [b"2"]), File("b", breaking_off())], "two")

        assert content(hub.fetch("someone/model")) == {"a": b"1"}
