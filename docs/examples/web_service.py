"""A training web service: start, watch, pause, save and stop a run over HTTP.

    python docs/examples/web_service.py

POST /start {"resume": true}, POST /pause, POST /resume, POST /save, POST /stop, GET /progress.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import torch
from aiohttp import web
from torch import Tensor, nn

from hexloop import Trainer, TrainingArguments
from hexloop.domain.errors import HexloopError
from hexloop.domain.events import AnyEvent, Logged, Paused, StepEnded, TrainBegan, TrainEnded


class Training:
    """Runs one Trainer at a time, created by `make_trainer`. All here happens in the event loop; steps do not."""

    def __init__(self, make_trainer: Callable[[], Trainer]) -> None:
        self.make_trainer = make_trainer
        self.trainer: Trainer | None = None
        self.task: asyncio.Task[None] | None = None
        self.progress: dict[str, Any] = {"state": "idle", "step": 0, "loss": None, "error": None}

    def start(self, resume: bool) -> None:
        """Start a run; with `resume`, from the newest checkpoint."""
        self.progress |= {"state": "starting", "step": 0, "loss": None, "error": None}
        self.task = asyncio.create_task(self._run(resume))

    def is_live(self) -> bool:
        """Whether a run is live."""
        return self.task is not None and not self.task.done()

    async def close(self) -> None:
        """End the run after its current step."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def _run(self, resume: bool) -> None:
        """Run a Trainer, and mark it as ended when another one may start."""
        end: dict[str, Any] = {}
        try:
            self.trainer = await asyncio.to_thread(self.make_trainer)
            async with aclosing(self.trainer.astream(resume)) as events:
                async for event in events:
                    self._note(event)
                    if isinstance(event, TrainEnded):
                        end = {"state": "stopped" if event.stopped else "done"}
        except Exception as error:
            end = {"state": "failed", "error": str(error)}
        finally:
            self.trainer = None
            self.progress |= end

    def _note(self, event: AnyEvent) -> None:
        """Update the progress from an event."""
        match event:
            case TrainBegan(step=step) | StepEnded(step=step):
                self.progress |= {"state": "running", "step": step}
            case Logged(values=values) if "loss" in values:
                self.progress["loss"] = values["loss"]
            case Paused():
                self.progress["state"] = "paused"


LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")
LONGEST_BODY = 4096
"""Bytes of the body of a request; aiohttp responds with 413 to a longer one."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TRAINING = web.AppKey("training", Training)
routes = web.RouteTableDef()


@web.middleware
async def refuse_other_sites(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Respond with 403 to requests under another name than this machine's own, or from a page of another site.

    A page that is open in a browser here can send requests to this address, and give its own name this address.
    """
    origin = request.headers.get("Origin")
    if request.url.host not in LOCAL_NAMES or origin not in (None, str(request.url.origin())):
        raise web.HTTPForbidden(text="requests are accepted from this machine and its own pages only")
    return await handler(request)


async def wishes_in(request: web.Request) -> dict[str, bool]:
    """Return the body of a request; responds with 400 to anything but a JSON object of truth values."""
    if not request.can_read_body:
        return {}
    try:
        wishes = json.loads(await request.text())
    except (ValueError, RecursionError) as error:
        raise web.HTTPBadRequest(text="the body is not a JSON document") from error
    if not isinstance(wishes, dict) or not all(isinstance(wish, bool) for wish in wishes.values()):
        raise web.HTTPBadRequest(text='the body is not a JSON object such as {"resume": true}')
    return wishes


def live_trainer(request: web.Request) -> Trainer:
    """Return the Trainer of the live run; responds with 409 if there is none."""
    trainer = request.app[TRAINING].trainer
    if trainer is None:
        raise web.HTTPConflict(text="no run is live; POST /start begins one")
    return trainer


@routes.post("/start")
async def start(request: web.Request) -> web.Response:
    """Start a run."""
    training = request.app[TRAINING]
    wishes = await wishes_in(request)
    if training.is_live():
        raise web.HTTPConflict(text="a run is live; POST /stop ends it")
    training.start(resume=wishes.get("resume", False))
    return web.json_response(training.progress, status=202)


@routes.get("/progress")
async def progress(request: web.Request) -> web.Response:
    """Return the progress of the run."""
    return web.json_response(request.app[TRAINING].progress)


@routes.post("/{action:pause|resume|stop}")
async def control(request: web.Request) -> web.Response:
    """Pass a request to the run, which applies it at its next step."""
    trainer = live_trainer(request)
    {"pause": trainer.pause, "resume": trainer.resume, "stop": trainer.request_stop}[request.match_info["action"]]()
    return web.json_response(request.app[TRAINING].progress, status=202)


@routes.post("/save")
async def save(request: web.Request) -> web.Response:
    """Save, and respond with the name of the checkpoint once it is durable."""
    try:
        name = await live_trainer(request).request_save()
    except HexloopError as error:
        raise web.HTTPConflict(text=str(error)) from error
    return web.json_response({"checkpoint": name})


def make_app(make_trainer: Callable[[], Trainer]) -> web.Application:
    """Return the web application for the runs of `make_trainer`."""

    async def training(app: web.Application) -> AsyncIterator[None]:
        app[TRAINING] = Training(make_trainer)
        yield
        await app[TRAINING].close()

    app = web.Application(middlewares=[refuse_other_sites], client_max_size=LONGEST_BODY)
    app.add_routes(routes)
    app.cleanup_ctx.append(training)
    return app


class Curve(nn.Module):
    """Fits a curve: x (rows, 1) to y (rows, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layers(x), labels)}


def curve_trainer(folder: str = "runs/web_service") -> Trainer:
    """Return a Trainer that prints nothing; its progress is available over HTTP."""
    points = torch.linspace(-3, 3, 256).unsqueeze(-1)
    rows = [{"x": x, "labels": x.sin()} for x in points]
    arguments = TrainingArguments(
        output_dir=folder, max_steps=1_000_000, logging_steps=20, save_steps=10_000, save_total_limit=3
    )
    return Trainer(model=Curve(), args=arguments, train_dataset=rows, loggers=[])


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        web.run_app(make_app(curve_trainer), host="127.0.0.1", port=8080)
