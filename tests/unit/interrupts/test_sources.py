"""Sources of requests to stop, beyond their contract."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from hexloop.adapters.clock.clocks import ManualClock
from hexloop.adapters.interrupts.manual import ManualInterrupts, NoInterrupts
from hexloop.adapters.interrupts.polling import Deadline, FileTouched, PolledInterrupts, SeveralInterrupts
from hexloop.adapters.interrupts.signals import SignalInterrupts
from hexloop.app.arguments import TrainingArguments
from hexloop.app.wiring.adapters import choose_interrupts
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.requests import AgreedRequests, Requests


def test_a_file_that_was_there_before_is_no_reason_until_it_is_touched(tmp_path: Path) -> None:
    """A file left over from an earlier stop does not stop the run that was started after it."""
    file = tmp_path / "stop"
    file.touch()
    asked: list[str] = []
    interrupts = PolledInterrupts(FileTouched(str(file)), period=60.0)
    interrupts.start(asked.append)
    interrupts.look()
    assert asked == []
    os.utime(file, ns=(1, 1))
    interrupts.look()
    interrupts.look()
    interrupts.stop()
    assert asked == [f"the file {file}"]


def test_polling_goes_on_beside_the_program(tmp_path: Path) -> None:
    """Without anybody looking by hand, the thread notices the file; it has ended when `stop` returns."""
    heard = threading.Event()
    interrupts = PolledInterrupts(FileTouched(str(tmp_path / "stop")), period=0.001)
    interrupts.start(lambda reason: heard.set())
    (tmp_path / "stop").touch()
    assert heard.wait(60)
    interrupts.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "hexloop interrupts"]


def test_a_deadline_leaves_its_margin() -> None:
    """It is a reason from the margin on, counted from when it was made, and says how long it was."""
    clock = ManualClock()
    deadline = Deadline(3600.0, 120.0, clock)
    clock.advance(3479.0)
    deadline.begin()
    assert deadline.reason() is None
    clock.advance(1.0)
    assert deadline.reason() == "the deadline after 3600 s"


@pytest.mark.parametrize("margin", [-1.0, 10.0, 20.0])
def test_a_deadline_without_time_is_refused(margin: float) -> None:
    """A margin as long as all the time there is leaves none, and a negative one none to save in."""
    with pytest.raises(ConfigurationError, match="choose a later deadline"):
        Deadline(10.0, margin, ManualClock())


def test_where_one_source_refuses_none_listens() -> None:
    """Those that were started are stopped again, and the refusal goes through."""

    class Refusing(ManualInterrupts):
        def start(self, ask: object) -> None:
            raise ConfigurationError(["You cannot."])

    first = ManualInterrupts()
    with pytest.raises(ConfigurationError):
        SeveralInterrupts([first, Refusing()]).start(lambda reason: None)
    assert not first.listening


def test_a_second_signal_without_an_earlier_handler_unwinds() -> None:
    """Where the system would end the process on the spot, SystemExit is raised, with the code a shell would show."""
    before = signal.getsignal(signal.SIGUSR2)
    asked: list[str] = []
    interrupts = SignalInterrupts([signal.SIGUSR2])
    interrupts.start(asked.append)
    os.kill(os.getpid(), signal.SIGUSR2)
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), signal.SIGUSR2)
    interrupts.stop()
    assert ended.value.code == 128 + signal.SIGUSR2
    assert asked == ["signal SIGUSR2"]
    assert signal.getsignal(signal.SIGUSR2) is before


def test_signals_that_another_thread_let_go_do_what_they_did_before() -> None:
    """A stop in another thread cannot put handlers back, but what they do is again what was done before."""
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    try:
        interrupts = SignalInterrupts([signal.SIGUSR2])
        interrupts.start(pytest.fail)
        thread = threading.Thread(target=interrupts.stop)
        thread.start()
        thread.join()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert heard == [signal.SIGUSR2]
        interrupts.stop()
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_forked_process_is_not_the_run() -> None:
    """It inherits the handler, but ends of the signal as it would have without one."""
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


def test_the_arguments_choose_the_sources() -> None:
    """Nothing is listened to unless it is named; SIGTERM is also what the reference's argument names."""

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


def test_a_stop_may_be_asked_for_together_with_a_save() -> None:
    """Both are there at once, so that no boundary sees one without the other."""
    requests = Requests()
    requests.request_stop("the machine is wanted back", save=True)
    assert requests.current == AgreedRequests(stop=True, save=True)
    assert requests.reasons == ("the machine is wanted back",)
