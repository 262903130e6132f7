"""Kills runs at random times while they publish, and checks what the hub has in the end.

`python -m tests.end_to_end.publishing.kills --kills 100` prints the counts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections import Counter
from itertools import count
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.end_to_end.publishing.faults import REPOSITORY, assert_complete, environment, flush
from tests.end_to_end.publishing.publishing_run import publish
from tests.engines.processes import CONTEXT
from tests.engines.publishing_hub import PublishingHub, publishing_hub

MOST_KILLS = 8
"""Kills of one run."""

STATES: Counter[str] = Counter()
"""What the outbox had after each kill."""


def killed_often(seed: int, folder: Path, most: int = MOST_KILLS) -> int:
    """Kill a run up to `most` times, most of them while it publishes, then let it end; return the number of kills.

    Raises AssertionError if the hub shows a version that is not whole, or not the last state in the end.
    """
    chance, kills = random.Random(seed), 0
    with publishing_hub() as hub:
        hub.delay = 0.02
        for _ in range(chance.randint(1, most)):
            process = started(folder, hub.address)
            until, requests = time.monotonic() + 200, len(hub.requests)
            wanted = requests + chance.randint(1, 40 if kills else 4)  # a run makes at least five
            while process.is_alive() and len(hub.requests) < wanted:
                assert time.monotonic() < until
                time.sleep(0.002)
            time.sleep(chance.random() * 0.05)
            if process.is_alive():
                process.kill()
                kills += 1
                STATES[_state(hub, folder)] += 1
            process.join()
        process = started(folder, hub.address)
        process.join(280)
        assert process.exitcode == 0
        if list(folder.glob(".hexloop/outbox/hub*/*.json")):
            flush(folder, hub.address)
        assert_complete(hub, folder)
        assert not list(folder.glob(".hexloop/outbox/hub*/*"))
    return kills


def started(folder: Path, address: str) -> ForkServerProcess:
    """Start a process that trains and publishes, with everything imported already."""
    process = CONTEXT.Process(target=publish, args=(str(folder), address, {"outbox_grace": 60}))
    process.start()
    return process


def _state(hub: PublishingHub, folder: Path) -> str:
    waiting = len(list(folder.glob(".hexloop/outbox/hub/*.json")))
    commits = "commits" if hub.commits(REPOSITORY) else "no commit"
    return f"{commits} on the hub, {'nothing' if not waiting else 'pushes'} in the outbox"


def main() -> None:
    """Kill as many times as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    options = parser.parse_args()
    os.environ |= environment()
    kills = runs = 0
    for seed in count(options.seed):
        with tempfile.TemporaryDirectory() as folder:
            kills += killed_often(seed, Path(folder), min(MOST_KILLS, options.kills - kills))
        runs += 1
        print(f"{kills} kills, seed {seed}", flush=True)
        if kills >= options.kills:
            break
    print(f"{kills} kills of {runs} runs that publish (seed {options.seed}): each hub has the whole last state, once")
    print(json.dumps(STATES, indent=1))


if __name__ == "__main__":
    main()
