"""`hexloop launch`: run a recipe or a script in several processes, on one machine or several."""

from __future__ import annotations

import logging
import os
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hexloop.app.callbacks.beside_bars import COPIED_TO_TERMINAL
from hexloop.app.command_line.launch.plan import LaunchPlan, read_plan
from hexloop.app.run.command import LAUNCHED_AS
from hexloop.domain.errors import CollectiveError

VARIABLES = {
    "TORCH_GLOO_LAZY_INIT": "1",
    # Without it, a restart after SIGKILL hangs in scripts that initialize torch.distributed themselves.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


def run(options: Namespace) -> int:
    """Launch the processes, wait for them, and return the exit code."""
    plan = read_plan(options)
    here = options.argv[: len(options.argv) - len(plan.arguments) - 1]
    given = {"OMP_NUM_THREADS": str(plan.threads), LAUNCHED_AS: shlex.join(["hexloop", *here])}
    if os.isatty(2):
        label = len("[rank 0] ")
        given[COPIED_TO_TERMINAL] = str(max(1, os.get_terminal_size(2).columns - label))
    with _settings({**VARIABLES, **given}):
        return launch(plan)


def launch(plan: LaunchPlan) -> int:
    """Run the workers of this machine to the end; return 0, or the exit code of the one that failed first.

    Raises CollectiveError if the other machines cannot be reached.
    """
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousError

    from hexloop.app.command_line.launch.agent import Agent, ReceivedSignals
    from hexloop.app.command_line.launch.output import Screen

    signals, screen, agent = ReceivedSignals(), Screen(), None
    with signals.handled():
        try:
            with signals.raising():
                agent = Agent(plan, screen, signals)
            agent.run()
        except SignalException as ending:
            screen.report(f"{ending.sigval.name}: nothing was running")
            return 128 + ending.sigval
        except (RendezvousError, DistError, TimeoutError) as error:
            if agent is not None and agent.failure is not None and isinstance(error, RendezvousClosedError):
                screen.report("another machine has ended the launch; workers are not restarted")
                return agent.failure.exit_code
            raise CollectiveError(
                f"Rendezvous at {plan.rendezvous} failed ({error}); check that the launch at that address is running, "
                f"that its port can be reached, and that {plan.nodes[0]} machines start within {plan.join_timeout:g} s."
            ) from error
        finally:
            if agent is not None:
                agent.close()
    return agent.failure.exit_code if agent.failure is not None else 0


@contextmanager
def _settings(defaults: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that are not set, and disable the logs of torch's agent; restore both afterwards.

    The launcher prints its own messages. Setting `LOGLEVEL` enables the logs.
    """
    # torch's agent would raise exceptions for signals in the middle of a start and leave workers running.
    given = {name: value for name, value in defaults.items() if name not in os.environ}
    given["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""
    before = {name: os.environ.get(name) for name in given}
    level = logging.root.manager.disable
    if "LOGLEVEL" not in os.environ:
        logging.disable(logging.CRITICAL)
    os.environ.update(given)
    try:
        yield
    finally:
        logging.disable(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
