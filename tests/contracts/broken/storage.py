"""Storages and hubs that each violate their contract in one way; `broken` names the test that detects it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from attrs import evolve

from hexloop.ports.hub import Hub
from hexloop.ports.storage import Entry, File, Storage, StorageCapabilities, Stored
from hexloop.testing import (
    HubContract,
    MemoryHub,
    MemoryStorage,
    StorageContract,
)


class StorageTest(StorageContract):
    kind: type[Storage]

    @pytest.fixture
    def storage(self) -> Storage:
        return self.kind()


class Overwriting(MemoryStorage):
    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        self.remove(path)
        return super().write(path, chunks)


class TestOverwriting(StorageTest):
    broken = "test_a_file_is_never_overwritten"
    kind = Overwriting


class WritingAtTheEpoch(MemoryStorage):
    @property
    def capabilities(self) -> StorageCapabilities:
        return evolve(super().capabilities, modified=lambda path: 0.0)


class TestWritingAtTheEpoch(StorageTest):
    broken = "test_the_time_of_a_write_is_reported_or_unknown"
    kind = WritingAtTheEpoch


class LeavingPartialFiles(MemoryStorage):
    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        try:
            return super().write(path, chunks)
        except EOFError:
            super().write(path, [b"some"])
            raise


class TestLeavingPartialFiles(StorageTest):
    broken = "test_a_write_that_fails_leaves_no_file"
    kind = LeavingPartialFiles


class DigestingChunks(MemoryStorage):
    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        held = list(chunks)
        stored = super().write(path, held)
        return Stored(stored.size, f"{stored.digest}{len(held):02x}")


class TestDigestingChunks(StorageTest):
    broken = "test_a_digest_depends_on_the_bytes_only"
    kind = DigestingChunks


class Unsorted(MemoryStorage):
    def list(self, folder: str) -> tuple[Entry, ...]:
        return super().list(folder)[::-1]


class TestUnsorted(StorageTest):
    broken = "test_names_are_listed_in_order"
    kind = Unsorted


class MovingOntoOthers(MemoryStorage):
    def move(self, source: str, destination: str) -> None:
        self.remove(destination)
        super().move(source, destination)


class TestMovingOntoOthers(StorageTest):
    broken = "test_a_move_never_overwrites"
    kind = MovingOntoOthers


class RemovingByPrefix(MemoryStorage):
    def remove(self, path: str) -> None:
        for entry in self.list(""):
            if entry.name.startswith(path):
                super().remove(entry.name)


class TestRemovingByPrefix(StorageTest):
    broken = "test_a_removal_is_complete"
    kind = RemovingByPrefix


class ReadingNothing(MemoryStorage):
    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        return super().read(path, start) if path in {entry.name for entry in self.list("")} else iter(())


class ReadingAll(MemoryStorage):
    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        return super().read(path)


class TestReadingAll(StorageTest):
    broken = "test_a_file_can_be_read_from_any_byte"
    kind = ReadingAll


class TestReadingNothing(StorageTest):
    broken = "test_a_missing_file_cannot_be_read"
    kind = ReadingNothing


class FollowingPaths(MemoryStorage):
    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        return super().write(path.replace("..", "dots"), chunks)


class TestFollowingPaths(StorageTest):
    broken = "test_no_path_leaves_the_storage"
    kind = FollowingPaths


class OldestFirst(MemoryHub):
    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        return super().fetch(name, version or "1")


class PublishingHalf(MemoryHub):
    def publish(self, name: str, files: Iterable[File], message: str, **options: Any) -> str:
        held = list(files)
        if len(held) == 2:
            super().publish(name, held[:1], message, **options)
        return super().publish(name, held, message, **options)


class Forgetting(MemoryHub):
    def publish(self, name: str, files: Iterable[File], message: str, **options: Any) -> str:
        everything = [version.name for version in self.versions.get(name, [])[-1:]]
        paths = [path for version in self.versions.get(name, [])[-1:] for path in version.files]
        return super().publish(name, files, message, **{**options, "delete": paths if everything else ()})


class BuildingOnAny(MemoryHub):
    def publish(self, name: str, files: Iterable[File], message: str, **options: Any) -> str:
        return super().publish(name, files, message, **{**options, "parent": None})


class OneBranch(MemoryHub):
    def publish(self, name: str, files: Iterable[File], message: str, **options: Any) -> str:
        return super().publish(name, files, message, **{**options, "branch": None})


class MergingAtOnce(MemoryHub):
    def publish(self, name: str, files: Iterable[File], message: str, **options: Any) -> str:
        return super().publish(name, files, message, **{**options, "review": False})


class StartingOver(MemoryHub):
    def create(self, name: str, private: bool | None = None) -> str:
        self.versions.pop(name, None)
        return super().create(name, private)


class HubTest(HubContract):
    kind: type[Hub]

    @pytest.fixture
    def hub(self) -> Hub:
        return self.kind()


class TestOldestFirst(HubTest):
    broken = "test_the_newest_version_is_fetched_unless_another_is_named"
    kind = OldestFirst


class TestPublishingHalf(HubTest):
    broken = "test_a_failure_publishes_nothing"
    kind = PublishingHalf


class TestForgetting(HubTest):
    broken = "test_a_version_changes_only_what_it_names"
    kind = Forgetting


class TestBuildingOnAny(HubTest):
    broken = "test_a_version_that_is_no_longer_the_newest_is_not_built_on"
    kind = BuildingOnAny


class TestOneBranch(HubTest):
    broken = "test_a_branch_starts_from_the_main_one"
    kind = OneBranch


class TestMergingAtOnce(HubTest):
    broken = "test_a_change_for_review_is_not_made"
    kind = MergingAtOnce


class TestStartingOver(HubTest):
    broken = "test_a_repository_is_created_once"
    kind = StartingOver
