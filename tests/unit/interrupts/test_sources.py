"""Sources of stop requests beyond their contract."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from hexloop.adapters.clock import ManualClock
from hexloop.adapters.interrupts import (
    Deadline,
    FileTouched,
    ManualInterrupts,
    NoInterrupts,
    PolledInterrupts,
    SeveralInterrupts,
    SignalInterrupts,
)
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import choose_interrupts
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.requests import AgreedRequests, Requests


def test_an_existing_file_is_ignored_until_it_is_touched(tmp_path: Path) -> None:
    """A file left over from an earlier stop does not stop a new run."""
    file = tmp_path / "stop"
    file.touch()
    reasons: list[str] = []
    interrupts = PolledInterrupts(FileTouched(str(file)), period=60.0)
    interrupts.start(reasons.append)
    interrupts.look()
    assert reasons == []
    os.utime(file, ns=(1, 1))
    interrupts.look()
    interrupts.look()
    interrupts.stop()
    assert reasons == [f"the file {file}"]


def test_polling_runs_in_the_background(tmp_path: Path) -> None:
    """The thread notices the file on its own, and has ended when `stop` returns."""
    received = threading.Event()
    interrupts = PolledInterrupts(FileTouched(str(tmp_path / "stop")), period=0.001)
    interrupts.start(lambda reason: received.set())
    (tmp_path / "stop").touch()
    assert received.wait(60)
    interrupts.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "hexloop interrupts"]


def test_a_deadline_has_a_margin() -> None:
    """It requests a stop from the margin on, counted from its construction, and reports its duration."""
    clock = ManualClock()
    deadline = Deadline(3600.0, 120.0, clock)
    clock.advance(3479.0)
    deadline.begin()
    assert deadline.reason() is None
    clock.advance(1.0)
    assert deadline.reason() == "the deadline after 3600 s"


@pytest.mark.parametrize("margin", [-1.0, 10.0, 20.0])
def test_a_deadline_without_time_is_refused(margin: float) -> None:
    """A margin as long as the whole duration is refused, and so is a negative one."""
    with pytest.raises(ConfigurationError, match="choose a later deadline"):
        Deadline(10.0, margin, ManualClock())


def test_a_refusing_source_stops_the_others() -> None:
    """Sources that were started are stopped again, and the refusal is propagated."""

    class Refusing(ManualInterrupts):
        def start(self, ask: object) -> None:
            raise ConfigurationError(["You cannot."])

    first = ManualInterrupts()
    with pytest.raises(ConfigurationError):
        SeveralInterrupts([first, Refusing()]).start(lambda reason: None)
    assert not first.listening


def test_a_second_signal_without_an_earlier_handler_raises_system_exit() -> None:
    """SystemExit with a shell's exit code is raised where the system would kill the process."""
    before = signal.getsignal(signal.SIGUSR2)
    reasons: list[str] = []
    interrupts = SignalInterrupts([signal.SIGUSR2])
    interrupts.start(reasons.append)
    os.kill(os.getpid(), signal.SIGUSR2)
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), signal.SIGUSR2)
    interrupts.stop()
    assert ended.value.code == 128 + signal.SIGUSR2
    assert reasons == ["signal SIGUSR2"]
    assert signal.getsignal(signal.SIGUSR2) is before


def test_signals_released_by_another_thread_keep_their_earlier_behaviour() -> None:
    """A stop in another thread cannot restore handlers, but signals have their earlier effect again."""
    received: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: received.append(number))
    try:
        interrupts = SignalInterrupts([signal.SIGUSR2])
        interrupts.start(pytest.fail)
        thread = threading.Thread(target=interrupts.stop)
        thread.start()
        thread.join()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert received == [signal.SIGUSR2]
        interrupts.stop()
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_forked_process_ignores_the_runs_handler() -> None:
    """It inherits the handler, but the signal ends it as it would without one."""
    interrupts = SignalInterrupts([signal.SIGUSR2])
    interrupts.start(pytest.fail)
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGUSR2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    interrupts.stop()
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGUSR2


def test_arguments_select_the_sources() -> None:
    """No source is active unless it is named; transformers' argument selects SIGTERM as well."""

    def chosen(**given: object) -> object:
        problems: list[str] = []
        arguments = TrainingArguments(use_cpu=True, **given)  # type: ignore[arg-type]
        interrupts = choose_interrupts(arguments, ManualClock(), problems)
        assert problems == []
        return interrupts

    assert isinstance(chosen(), NoInterrupts)
    assert isinstance(chosen(interrupts=[]), NoInterrupts)
    assert isinstance(chosen(interrupts="SIGTERM"), SignalInterrupts)
    assert isinstance(chosen(enable_jit_checkpoint=True), SignalInterrupts)
    assert isinstance(chosen(stop_file="stop"), PolledInterrupts)
    several = chosen(interrupts=["SIGUSR1"], stop_file="stop", stop_after=100.0)
    assert isinstance(several, SeveralInterrupts)
    assert len(several.sources) == 3
    with pytest.raises(ConfigurationError, match="SIGKILL"):
        TrainingArguments(interrupts=["SIGKILL"])
    with pytest.raises(ConfigurationError, match="no time to train"):
        TrainingArguments(stop_after=30.0)


def test_a_stop_and_a_save_can_be_requested_together() -> None:
    """Both requests take effect at the same boundary."""
    requests = Requests()
    requests.request_stop("the machine is wanted back", save=True)
    assert requests.current == AgreedRequests(stop=True, save=True)
    assert requests.reasons == ("the machine is wanted back",)
