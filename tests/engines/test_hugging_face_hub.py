"""The adapter of the Hugging Face Hub against a server on loopback that fails."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path

import pytest

from hexloop.adapters.hub.hugging_face import HuggingFaceHub
from hexloop.domain.errors import RefusedError, StorageError, UnavailableError
from hexloop.ports.storage import File
from tests.engines.publishing_hub import HubFault, PublishingHub, publishing_hub

TOKEN = "hf_0123456789abcdef"
WEIGHTS = File("model.safetensors", [bytes(100_000)])


@pytest.fixture
def server() -> Iterator[PublishingHub]:
    with publishing_hub() as server:
        yield server


@pytest.fixture
def hub(server: PublishingHub) -> HuggingFaceHub:
    return HuggingFaceHub(server.address, TOKEN)


def test_a_name_without_an_owner_is_completed(server: PublishingHub, hub: HuggingFaceHub) -> None:
    """The full name is the one that the hub states, whether the repository is new or not; the token is sent."""
    assert hub.create("model", private=True) == hub.create("model", private=False) == "someone/model"
    assert server.repositories["someone/model"].private is True
    assert server.tokens == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_a_definite_failure_is_a_refusal(server: PublishingHub, hub: HuggingFaceHub, status: int) -> None:
    """It names the repository and the address, and never shows the token."""
    server.faults.append(HubFault("POST /api/repos/create", status, times=9))
    with pytest.raises(RefusedError, match=rf"Cannot create someone/model on {server.address}") as caught:
        hub.create("someone/model")
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("status", [408, 409, 412, 429, 500, 503, None])
def test_other_failures_may_be_gone_later(server: PublishingHub, hub: HuggingFaceHub, status: int | None) -> None:
    """A conflict, a service that is overloaded or failing, and a closed connection are temporary."""
    server.faults.append(HubFault("commit/main", status, times=1))
    server.faults.append(HubFault("POST /api/repos/create", status, times=9))
    with pytest.raises(UnavailableError, match="someone/model"):
        hub.create("someone/model") if status != 409 else hub.publish("someone/model", [WEIGHTS], "one")


@pytest.mark.parametrize("as_date", [False, True])
def test_the_pause_that_the_hub_asks_for_is_known(server: PublishingHub, hub: HuggingFaceHub, as_date: bool) -> None:
    """It is stated in seconds or as a date."""
    stated = formatdate(time.time() + 70, usegmt=True) if as_date else "70"
    server.faults.append(HubFault("POST /api/repos/create", 429, headers={"Retry-After": stated}, times=9))
    with pytest.raises(UnavailableError) as caught:
        hub.create("someone/model")
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= 70


@pytest.mark.parametrize("name", ["a/b/c", "a b", "-a", "a..b"])
def test_an_invalid_name_is_refused_without_asking_the_hub(
    server: PublishingHub, hub: HuggingFaceHub, name: str
) -> None:
    """The package knows which names the hub accepts."""
    with pytest.raises(RefusedError):
        hub.create(name)
    assert server.requests == []


def test_a_hub_that_is_down_is_unavailable(server: PublishingHub, hub: HuggingFaceHub) -> None:
    """A connection that is closed, or not accepted, raises UnavailableError."""
    server.is_down = True
    with pytest.raises(UnavailableError):
        hub.create("someone/model")
    with pytest.raises(UnavailableError, match="Cannot create someone/model on http"):
        HuggingFaceHub("http://127.0.0.1:9").create("someone/model")


def test_an_upload_that_is_refused_in_a_thread_of_the_package_is_recognized(
    server: PublishingHub, hub: HuggingFaceHub
) -> None:
    """The status of the upload counts, not that of the package's own error; no commit is made."""
    server.faults.append(HubFault("PUT /storage", 403, times=9))
    with pytest.raises(RefusedError, match="403"):
        hub.publish("someone/model", [WEIGHTS, File("a", [b"1"])], "one")
    assert server.commits("someone/model") == []


@pytest.mark.matrix  # the package itself waits 23 seconds for a service that fails
def test_a_failure_at_any_request_of_an_upload_publishes_nothing() -> None:
    """No commit is made, and the same call succeeds once the hub works again."""
    requests = ("preupload", "objects/batch", "PUT /storage", "commit/main")
    cases = [(request, status) for request in requests for status in (500, None)]
    with ThreadPoolExecutor(len(cases)) as threads:
        for ended in [threads.submit(assert_nothing_is_published, *case) for case in cases]:
            ended.result()


def assert_nothing_is_published(request: str, status: int | None) -> None:
    """Check an upload whose request fails with the status, or without an answer."""
    with publishing_hub() as server:
        hub = HuggingFaceHub(server.address, TOKEN)
        server.faults.append(HubFault(request, status, times=6))
        with pytest.raises(UnavailableError):
            hub.publish("someone/model", [WEIGHTS, File("a", [b"1"])], "one")
        assert server.commits("someone/model") == []
        server.faults.clear()
        hub.publish("someone/model", [WEIGHTS, File("a", [b"1"])], "one")
        assert [commit.message for commit in server.commits("someone/model")] == ["one"]


def test_a_lost_answer_does_not_make_a_second_commit(server: PublishingHub, hub: HuggingFaceHub) -> None:
    """If a commit was made and its answer lost, publishing the same again changes nothing."""
    hub.publish("someone/model", [File("a", [b"0"])], "zero")
    server.faults.append(HubFault("commit/main", None, after=True))
    try:
        hub.publish("someone/model", [WEIGHTS, File("a", [b"1"])], "one")
    except StorageError:
        hub.publish("someone/model", [WEIGHTS, File("a", [b"1"])], "one")
    assert [commit.message for commit in server.commits("someone/model")].count("zero") == 1
    assert server.files("someone/model")["a"] == b"1"


def test_deleting_does_not_build_on_an_unknown_commit(server: PublishingHub, hub: HuggingFaceHub) -> None:
    """What is deleted is determined from one version, and the commit is made on top of that one."""
    old = hub.publish("someone/model", [File("folder/a", [b"1"]), File("folder/b", [b"2"])], "one")
    hub.publish("someone/model", [File("folder/c", [b"3"])], "two", delete=["folder/"])
    newest = server.commits("someone/model")[-1]
    assert (newest.parent, newest.deleted) == (old, ("folder/a", "folder/b"))
    assert newest.files == {"folder/c": b"3"}


def test_a_file_of_this_machine_is_not_copied(
    server: PublishingHub, hub: HuggingFaceHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent from where it lies; its chunks are not read."""
    path = tmp_path / "weights"
    path.write_bytes(b"123")

    def fail() -> Iterator[bytes]:
        raise AssertionError("the chunks were read")
        yield b""

    hub.publish("someone/model", [File("model.safetensors", fail(), str(path))], "one")
    assert server.files("someone/model") == {"model.safetensors": b"123"}


def test_a_private_repository_stays_private(server: PublishingHub, hub: HuggingFaceHub) -> None:
    """Also if it is removed during a run, and made again by the next push."""
    hub.create("someone/model", private=True)
    server.repositories.clear()
    hub.publish("someone/model", [WEIGHTS], "one")
    assert server.repositories["someone/model"].private is True


def test_an_open_pull_request_is_a_branch(server: PublishingHub, hub: HuggingFaceHub) -> None:
    """Further commits go to it by its name; one that is not open is refused."""
    hub.create("someone/model")
    hub.publish("someone/model", [WEIGHTS], "proposed", review=True)
    (name,) = server.repositories["someone/model"].branches.keys() - {"main"}
    hub.publish("someone/model", [File("more", [b"1"])], "more", branch=name)
    assert [commit.message for commit in server.commits("someone/model", name)] == ["proposed", "more"]
    assert server.commits("someone/model") == []
    with pytest.raises(RefusedError):
        hub.publish("someone/model", [WEIGHTS], "none", branch="refs/pr/99")


@pytest.mark.matrix
def test_uploads_do_not_keep_the_program_alive(server: PublishingHub) -> None:
    """Python waits at its exit for the threads in which the package uploads several files, so it uploads one a time."""
    server.rate = 10_000
    program = f"""
import threading, time
from hexloop.adapters.hub.hugging_face import HuggingFaceHub
from hexloop.ports.storage import File
files = [File(name, [bytes([number]) * 1_000_000]) for number, name in enumerate(["a.bin", "b.bin", "c.bin"])]
hub = HuggingFaceHub({server.address!r}, {TOKEN!r})
threading.Thread(target=hub.publish, args=("someone/model", files, "one"), daemon=True).start()
time.sleep(4)
"""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=200)
    assert any("PUT /storage" in request for request in server.requests)
    assert time.monotonic() - started < 90  # 100 s for a single file
