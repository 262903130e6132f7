"""The web service of the documentation, over real HTTP on this machine."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from docs.examples.web_service import curve_trainer, make_app
from hexloop import Trainer, TrainerCallback

Progress = dict[str, Any]


class Client:
    """An HTTP client of the service."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def progress(self) -> Progress:
        async with self.session.get("/progress") as response:
            assert response.status == 200
            found: Progress = await response.json()
            return found

    async def until(self, holds: Callable[[Progress], bool]) -> Progress:
        """Poll until the progress is as expected; the test's timeout is the only limit."""
        while not holds(found := await self.progress()):
            assert found["state"] != "failed", found
            await asyncio.sleep(0.01)
        return found

    async def until_step(self, step: int) -> Progress:
        return await self.until(lambda found: found["step"] >= step)

    async def until_state(self, state: str) -> Progress:
        return await self.until(lambda found: found["state"] == state)

    async def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.session.post(path, json=body) as response:
            if response.content_type == "application/json":
                return response.status, await response.json()
            return response.status, await response.text()


@asynccontextmanager
async def served(make_trainer: Callable[[], Trainer]) -> AsyncIterator[Client]:
    """Start the service on a free loopback port."""
    runner = web.AppRunner(make_app(make_trainer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield Client(session)
    finally:
        await runner.cleanup()


def serve(make_trainer: Callable[[], Trainer], use: Callable[[Client], Awaitable[None]]) -> None:
    """Serve while `use` runs."""

    async def main() -> None:
        async with served(make_trainer) as client:
            await use(client)

    asyncio.run(main())


def test_a_run_can_be_started_watched_and_stopped(tmp_path: Path) -> None:
    """The client receives the step and the loss while the run continues, and a stop request ends it."""

    async def use(client: Client) -> None:
        assert (await client.progress())["state"] == "idle"
        status, _ = await client.post("/start")
        assert status == 202
        early = await client.until(lambda found: found["loss"] is not None)
        late = await client.until_step(early["step"] + 200)
        assert late["loss"] < early["loss"]

        assert (await client.post("/start"))[0] == 409
        await client.post("/stop")
        ended = await client.until_state("stopped")
        assert ended["step"] < 1_000_000
        assert (await client.post("/stop"))[0] == 409

    serve(lambda: curve_trainer(str(tmp_path)), use)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ],
)
def test_requests_of_other_sites_are_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    """Under another host name, or from a page of another site, no run can be started or read."""

    async def use(client: Client) -> None:
        for method, path in (("POST", "/start"), ("POST", "/stop"), ("POST", "/pause"), ("GET", "/progress")):
            async with client.session.request(method, path, headers=headers) as response:
                assert response.status == 403
        assert (await client.progress())["state"] == "idle"

    serve(partial(curve_trainer, str(tmp_path)), use)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[]", 400),
        (b"{", 400),
        (b"[" * 4000, 400),
        (b'{"resume": "yes"}', 400),
        (b"\xff", 400),
        (b"1", 400),
        (b'{"resume": ' + b" " * 5000 + b"true}", 413),
    ],
)
def test_bodies_that_are_not_requests_are_refused(tmp_path: Path, body: bytes, status: int) -> None:
    """With a short message, and without starting a run."""

    async def use(client: Client) -> None:
        async with client.session.post("/start", data=body) as response:
            assert response.status == status
            assert "Traceback" not in await response.text()
        assert (await client.progress())["state"] == "idle"

    serve(partial(curve_trainer, str(tmp_path)), use)


def test_a_page_of_the_service_may_control_the_run(tmp_path: Path) -> None:
    """Its origin is the address of the service."""

    async def use(client: Client) -> None:
        origin = str((await client.session.get("/progress")).url.origin())
        async with client.session.post("/start", headers={"Origin": origin}) as response:
            assert response.status == 202
        await client.until_step(1)

    serve(partial(curve_trainer, str(tmp_path)), use)


def test_a_paused_run_takes_no_step_until_it_is_resumed(tmp_path: Path) -> None:
    """No step runs during a pause, though it can be saved, paused again, and resumed."""

    async def use(client: Client) -> None:
        await client.post("/start")
        await client.until_step(5)
        await client.post("/pause")
        step = (await client.until_state("paused"))["step"]
        status, saved = await client.post("/save")
        assert (status, saved) == (200, {"checkpoint": f"checkpoint-{step}"})
        await client.post("/pause")
        assert (await client.progress())["step"] == step

        await client.post("/resume")
        await client.until_step(step + 5)
        await client.post("/pause")
        await client.until_state("paused")
        await client.post("/stop")
        await client.until_state("stopped")

    serve(lambda: curve_trainer(str(tmp_path)), use)


def test_a_requested_checkpoint_can_be_resumed(tmp_path: Path) -> None:
    """The checkpoint is on disk when the response arrives, and a run of another service resumes from it."""
    steps: list[int] = []

    async def save(client: Client) -> None:
        await client.post("/start")
        await client.until_step(20)
        status, saved = await client.post("/save")
        assert status == 200
        assert (tmp_path / saved["checkpoint"] / "manifest.json").exists()
        steps.append(int(saved["checkpoint"].removeprefix("checkpoint-")))

    began: list[int] = []

    class Watcher(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            began.append(state.global_step)

    def watched() -> Trainer:
        trainer = curve_trainer(str(tmp_path))
        trainer.add_callback(Watcher())
        return trainer

    async def resume(client: Client) -> None:
        await client.post("/start", {"resume": True})
        await client.until_step(steps[0] + 5)

    serve(lambda: curve_trainer(str(tmp_path)), save)
    serve(watched, resume)
    assert began == steps


def test_the_event_loop_responds_during_a_slow_step(tmp_path: Path) -> None:
    """Progress is reported during a forward pass."""
    inside, go_on = threading.Event(), threading.Event()

    def slow_trainer() -> Trainer:
        trainer = curve_trainer(str(tmp_path))

        def wait(*_: Any) -> None:
            inside.set()
            go_on.wait()

        trainer.model.register_forward_pre_hook(wait)
        return trainer

    async def use(client: Client) -> None:
        await client.post("/start")
        await asyncio.to_thread(inside.wait)
        assert (await client.progress())["step"] == 0
        go_on.set()
        await client.until_step(1)

    serve(slow_trainer, use)


def test_no_signal_handler_is_changed(tmp_path: Path) -> None:
    """During a run every signal keeps its handler."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    async def use(client: Client) -> None:
        before = [signal.getsignal(number) for number in numbers]
        await client.post("/start")
        await client.until_step(1)
        assert [signal.getsignal(number) for number in numbers] == before

    serve(lambda: curve_trainer(str(tmp_path)), use)


def test_a_failing_run_reports_its_error(tmp_path: Path) -> None:
    """The error of a run that cannot start reaches the client, and the service keeps running."""

    async def use(client: Client) -> None:
        await client.post("/start", {"resume": True})
        while (found := await client.progress())["state"] != "failed":
            await asyncio.sleep(0.01)
        assert "found no good checkpoint" in found["error"]
        await client.post("/start")
        await client.until_step(1)

    serve(lambda: curve_trainer(str(tmp_path)), use)


@pytest.mark.parametrize("action", ["pause", "resume", "stop", "save"])
def test_requests_without_a_run_are_refused(action: str, tmp_path: Path) -> None:
    """A request for a run that is not active is answered with 409."""

    async def use(client: Client) -> None:
        assert (await client.post(f"/{action}"))[0] == 409

    serve(lambda: curve_trainer(str(tmp_path)), use)
