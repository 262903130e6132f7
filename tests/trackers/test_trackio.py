"""The adapter of trackio on the real library, whose databases are read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from tests.trackers.contract import FIRST, PROBLEM, SECOND, TrackerContract, information
from tests.trackers.running import SentRun, StoredRun

IN_THE_USERS_THREAD = """
import trackio
from concurrent.futures import ThreadPoolExecutor
from hexloop.adapters.logger.trackio import Trackio
from hexloop.ports.logger import Record, RunInformation

calls = ThreadPoolExecutor(max_workers=1)
mine = trackio.init(project="huggingface", name="by the user", embed=False)
first, second = Trackio(), Trackio()
calls.submit(first.start, RunInformation("digits", chosen_name="first")).result()
first.enter_thread()
calls.submit(second.start, RunInformation("digits", chosen_name="second")).result()
trackio.log({"own": 1.0}, step=3)
calls.submit(first.write, Record(5, 0.5, {"loss": 0.25})).result()
calls.submit(second.write, Record(5, 0.5, {"loss": 0.5})).result()
first.leave_thread()
calls.submit(first.finish).result()
calls.submit(second.finish).result()
trackio.log({"own": 2.0}, step=6)
trackio.finish()
"""
WITH_A_SPACE = """
import trackio
from hexloop.adapters.logger.trackio import Trackio
from hexloop.ports.logger import Record, RunInformation

begin, calls = trackio.init, []

def init(space_id, **arguments):
    '''What init does with a Space, without the Hub.'''
    calls.append(("init", space_id, arguments.pop("private"), arguments.pop("bucket_id")))
    run = begin(embed=False, **arguments)
    trackio.context_vars.current_space_id.set(space_id)
    return run

def freeze(**arguments):
    calls.append(("freeze", arguments))
    raise OSError("the Hub is down")

trackio.init, trackio.freeze = init, freeze
for static in (None, "me/static", False):
    logger = Trackio()
    configuration = {"project": "Digits & more", "trackio_space_id": "me/space", "trackio_bucket_id": "me/bucket"}
    configuration |= {"hub_private_repo": True, "trackio_static_space_id": static}
    logger.start(RunInformation("digits", configuration))
    logger.finish()
assert [call[0] for call in calls] == ["init", "freeze", "init", "freeze", "init"], calls
assert calls[0][1:] == ("me/space", True, "me/bucket")
first, second = (call[1] for call in calls if call[0] == "freeze")
assert first.pop("new_space_id").startswith("digits-more-static-")
assert second.pop("new_space_id") == "me/static"
assert first == second == {"space_id": "me/space", "project": "Digits & more", "private": True}
"""

WITHOUT_A_SPACE = """
import trackio
from hexloop.adapters.logger.trackio import Trackio
from hexloop.ports.logger import Record, RunInformation

calls = []

def sync(**arguments):
    '''What sync returns, without the Hub.'''
    calls.append(arguments)
    if arguments["project"] == "down":
        raise OSError("the Hub is down")
    return "me/digits-static"

trackio.sync = sync
pages = {}
for project in ("digits", "down", "private", "off", "not-pushed"):
    configuration = {"project": project, "push_to_hub": project != "not-pushed"}
    configuration |= {"hub_private_repo": True} if project == "private" else {}
    configuration |= {"trackio_static_space_id": False} if project == "off" else {}
    logger = Trackio()
    logger.start(RunInformation("run", configuration))
    logger.finish()
    pages[project] = logger.page, logger.card_tags
assert [call["project"] for call in calls] == ["digits", "down"], calls
assert calls[0] == {"project": "digits", "space_id": None, "force": True, "sdk": "static"}
page = "https://huggingface.co/spaces/me/digits-static"
assert pages.pop("digits") == (page, ("trackio", f"trackio:{page}"))
assert set(pages.values()) == {(None, ())}
"""


class TestTrackio(TrackerContract):
    adapter = "hexloop.adapters.logger.trackio:Trackio"
    package = module = extra = "trackio"
    program = "read_trackio.py"
    statuses: ClassVar[Mapping[str, str | None]] = {
        name: name for name in ("finished", "failed", "stopped", "preempted")
    }
    single_values = True
    seconds_before_death = 2.0

    def variables(self, folder: Path) -> dict[str, str]:
        return {"TRACKIO_DIR": str(folder / "trackio")}

    def without_login(self) -> dict[str, str]:
        return {"TRACKIO_SPACE_ID": "no-owner/here"}

    def login_hints(self) -> tuple[str, ...]:
        return ("HF_TOKEN",)

    def check_summary(self, one: StoredRun) -> None:
        assert one.more["project"] == "huggingface"
        assert one.more["alerts"] == []
        assert one.parameters["model/num_parameters"] == 10
        assert one.history["train/global_step"][0] == (10, 10)

    def check_problem(self, one: StoredRun) -> None:
        assert one.more["alerts"] == [["The run has failed", PROBLEM, "error"]]
        assert one.more["texts"]["hexloop/problem"] == PROBLEM

    @pytest.mark.matrix
    def test_a_newer_run_of_the_same_name(self, tmp_path: Path) -> None:
        """A run continues as itself, though another one with its name was started since; the project is an argument."""
        configuration = {"project": "digits", "_name_or_path": "x"}
        first, other = (
            self.track(tmp_path, SentRun(information(configuration=configuration), FIRST)).identity for _ in range(2)
        )
        assert first != other
        resumed = information(configuration=configuration, tracked_as=first, step=20)
        assert self.track(tmp_path, SentRun(resumed, SECOND)).identity == first
        runs = {one.identity: one for one in self.read(tmp_path)}
        assert set(runs) == {first, other}
        assert [step for step, _ in runs[first].history["train/loss"]] == [10, 20, 30]
        assert [step for step, _ in runs[other].history["train/loss"]] == [10, 20]
        assert runs[first].more["project"] == "digits"
        assert runs[first].parameters["name_or_path"] == "x"

    @pytest.mark.matrix
    def test_a_trial_is_named_and_grouped(self, tmp_path: Path) -> None:
        """A trial of a search has its own name, in the group of the search."""
        trials = [SentRun(information(trial=f"trial-{each}", group="search"), FIRST) for each in range(2)]
        assert self.track(tmp_path, *trials).error is None
        assert sorted((one.name, one.more["group"]) for one in self.read(tmp_path)) == [
            ("trial-0", "search"),
            ("trial-1", "search"),
        ]

    @pytest.mark.matrix
    def test_a_pushed_run_is_shown_in_a_static_space(self, tmp_path: Path) -> None:
        """Model cards link it. A Hub that is down ends nothing, and what is private does not become public."""
        self.run(tmp_path, WITHOUT_A_SPACE)

    @pytest.mark.matrix
    def test_the_users_thread_sees_the_run(self, tmp_path: Path) -> None:
        """trackio.log of the user goes to the run, and before and after it to the user's own, which stays open."""
        self.run(tmp_path, IN_THE_USERS_THREAD)
        runs = {one.name: one.history for one in self.read(tmp_path)}
        assert runs["first"]["own"] == [(3, 1.0)]
        assert runs["first"]["train/loss"] == [(5, 0.25)]
        assert runs["second"]["train/loss"] == [(5, 0.5)]
        assert runs["by the user"]["own"] == [(6, 2.0)]

    @pytest.mark.matrix
    def test_a_space_is_frozen_at_the_end(self, tmp_path: Path) -> None:
        """Trackio gets the arguments of the Space, and freezes it unless told not to; a failure is no error."""
        self.run(tmp_path, WITH_A_SPACE, HF_TOKEN="hf_no_real_one")
