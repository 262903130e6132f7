"""`hexloop launch`: a recipe or a script in several processes, on one machine or many."""

from __future__ import annotations

import logging
import os
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hexloop.app.command_line.launch.plan import Plan, read_plan
from hexloop.app.command_line.resuming import LAUNCHED_AS
from hexloop.domain.errors import CollectiveError

VARIABLES = {
    "TORCH_GLOO_LAZY_INIT": "1",  # without these two, a restart after a SIGKILL mostly hangs
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


def run(options: Namespace) -> int:
    """Launch, and wait for the end."""
    plan = read_plan(options)
    here = options.words[: len(options.words) - len(plan.words) - 1]
    given = {"OMP_NUM_THREADS": str(plan.threads), LAUNCHED_AS: shlex.join(["hexloop", *here])}
    with _variables({**VARIABLES, **given}), _quiet():
        return launch(plan)


def launch(plan: Plan) -> int:
    """Run the workers of this machine to the end; gives 0, or the exit code of the one that failed first.

    Raises CollectiveError where the other machines are not to be found.
    """
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousError

    from hexloop.app.command_line.launch.agent import Agent
    from hexloop.app.command_line.launch.screen import Screen
    from hexloop.app.command_line.launch.signals import Signals

    signals, screen, agent = Signals(), Screen(), None
    with signals.heard():
        try:
            with signals.raising():
                agent = Agent(plan, screen, signals)
            agent.run()
        except SignalException as ending:
            screen.say(f"{ending.sigval.name}: nothing was running")
            return 128 + ending.sigval
        except (RendezvousError, DistError, TimeoutError) as error:
            if agent is not None and agent.failure is not None and isinstance(error, RendezvousClosedError):
                screen.say("another machine has ended the launch, so nothing is started again")
                return agent.failure.exit_code
            raise _nobody_there(plan, error) from error
        finally:
            if agent is not None:
                agent.close()
    return agent.failure.exit_code if agent.failure is not None else 0


def _nobody_there(plan: Plan, error: Exception) -> CollectiveError:
    return CollectiveError(
        f"You chose --rendezvous {plan.rendezvous}, but the machines could not meet there ({error}); see that the "
        f"launch at that address runs, that its port can be reached, and that {plan.nodes[0]} of them start within "
        f"{plan.join_timeout:g} s."
    )


@contextmanager
def _variables(defaults: Mapping[str, str]) -> Iterator[None]:
    """Set the variables of the environment that are not set; afterwards it is as it was."""
    # Of signals, torch's agent would make exceptions in the middle of a start, which would leave workers behind.
    given = {name: value for name, value in defaults.items() if name not in os.environ}
    given["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _quiet() -> Iterator[None]:
    """Let torch's agent log nothing: what it has to say is told in other words. `LOGLEVEL`, which it reads, lets it."""
    before = logging.root.manager.disable
    if "LOGLEVEL" not in os.environ:
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
