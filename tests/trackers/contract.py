"""The contract of all trackers: one small scenario on the real library, read back from the store that it leaves.

Each tracker derives its test class from `TrackerContract` and says how names, steps and outcomes look in its store.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar
from zipfile import ZipFile, is_zipfile

import pytest
from attrs import evolve

from hexloop.adapters.logger.tracker import SINGLE_VALUES, grouped
from hexloop.app.testing.contracts.environment import MEDIA, with_file
from hexloop.ports.logger import FINISHED, Outcome, Record, Value
from tests.trackers.running import Answer, SentRun, StoredRun, pinned, run, stored, track

CONFIGURATION = {
    "learning_rate": 0.001,
    "max_steps": 40,
    "eval_strategy": "steps",
    "output_dir": "out",
    "seed": 7,
    "fp16": False,
    "label_names": ["labels"],
    "optim_args": None,
    "accelerator_config": {"split_batches": False, "dispatch_batches": None},
    "report_to": ["all of them"],
}
MODEL = {
    "hidden_size": 16,
    "model_type": "tiny",
    "id2label": {"0": "no", "1": "yes"},
    "learning_rate": "hidden by the arguments",
}
FIRST = (
    Record(10, 0.25, {"loss": 0.75, "grad_norm": 1.5, "learning_rate": 0.00075, "epoch": 0.25}),
    Record(20, 0.5, {"loss": 0.5, "grad_norm": 1.25, "learning_rate": 0.0005, "epoch": 0.5}),
    Record(20, 0.5, {"eval_loss": 0.625, "eval_accuracy": 0.5, "eval_runtime": 0.125, "epoch": 0.5}),
)
SECOND = (
    Record(30, 0.75, {"loss": 0.25, "grad_norm": 1.0, "learning_rate": 0.00025, "epoch": 0.75}),
    Record(40, 1.0, {"eval_loss": 0.375, "eval_accuracy": 0.75, "eval_runtime": 0.25, "epoch": 1.0}),
)
LAST = Record(40, 1.0, {
    "train_runtime": 2.0, "train_samples_per_second": 80.0, "train_steps_per_second": 20.0, "total_flos": 1024.0,
    "train_loss": 0.5, "epoch": 1.0,
})  # fmt: skip
PROBLEM = "ValueError: the loss is not finite at step 20"
OUTCOMES = {
    "finished": FINISHED,
    "failed": Outcome("failed", PROBLEM),
    "stopped": Outcome("stopped", "Ctrl-C"),
    "preempted": Outcome("preempted", "SIGTERM"),
}


def information(**changes: object) -> dict[str, object]:
    """Return the fields of RunInformation of the scenario's run."""
    return {
        "name": "a tiny run",
        "chosen_name": "a tiny run",
        "run": "0f1e2d3c4b5a",
        "configuration": CONFIGURATION,
        "model_configuration": MODEL,
        "folder": "out",
        "total_steps": 40,
        "parameters": 10,
        "trainable_parameters": 10,
        **changes,
    }


def joined(parts: list[StoredRun]) -> StoredRun:
    """Return the parts that each process left of one run as that run; the last part says how it ended."""
    history: dict[str, list[tuple[float | None, Any]]] = {}
    for part in parts:
        assert part.identity == parts[0].identity
        for name, points in part.history.items():
            history[name] = history.get(name, []) + points
    return evolve(parts[-1], history=history)


class TrackerContract:
    """Contract suite of a tracker's adapter. Override the class variables, `variables`, and what differs below.

    adapter: "module:class". package, environment: of the library, and the list that pins it. program: in `programs`,
    prints what the store has, as `running.stored` describes; its arguments are the folder of the test and more.
    statuses: from the outcome to the status that the store has. single_values: whether the values of the whole run are
    in the summary, and not curves. resumes: whether a run can continue in another process.
    seconds_before_death: how long a process that is killed waits after its last call, for libraries that write files
    only now and then.
    """

    adapter: ClassVar[str]
    package: ClassVar[str]
    environment: ClassVar[str] = "trackers"
    module: ClassVar[str]
    extra: ClassVar[str]
    program: ClassVar[str]
    options: ClassVar[Mapping[str, object]] = {}
    statuses: ClassVar[Mapping[str, str | None]]
    single_values: ClassVar[bool] = False
    resumes: ClassVar[bool] = True
    one_logger: ClassVar[bool] = True
    seconds_before_death: ClassVar[float] = 0.0

    def variables(self, folder: Path) -> dict[str, str]:
        """Return the environment variables that send runs to a store in `folder`."""
        return {}

    def name_of(self, name: str) -> str:
        """Return the name of a value in the store."""
        return grouped(name)

    def step_of(self, record: Record) -> float | None:
        """Return the step that the store has for a record."""
        return record.step

    def parameter(self, name: str) -> str:
        """Return the name of an argument in the store, of which "/" separates levels."""
        return name

    def same(self, found: object, value: object) -> bool:
        """Return whether a parameter of the store is the value, by default as its text."""
        return str(found) == str(value)

    def left_out(self, name: str, value: Value) -> bool:
        """Return whether the tracker has no curve for this value."""
        return value is None or (self.single_values and name in SINGLE_VALUES)

    def track(self, folder: Path, *runs: SentRun, **more: Any) -> Answer:
        """Send runs to the adapter in a new process; see `running.track` for what `more` may be."""
        settings: dict[str, Any] = {"options": self.options, "one_logger": self.one_logger, **more}
        settings["variables"] = {**self.variables(folder), **more.get("variables", {})}
        return track(self.environment, self.adapter, self.package, runs, folder=folder, **settings)

    def read(self, folder: Path, *words: str) -> list[StoredRun]:
        """Return the runs of the store, the oldest first."""
        return stored(self.environment, self.program, folder, *words, folder=folder, variables=self.variables(folder))

    def run(self, folder: Path, program: str, **variables: str) -> str:
        """Run lines of Python in the environment, and return what they print."""
        return run(self.environment, "-c", program, folder=folder, variables={**self.variables(folder), **variables})

    def expected(self, *records: Record) -> dict[str, list[tuple[float | None, Value]]]:
        """Return the curves of records as the store has them."""
        curves: dict[str, list[tuple[float | None, Value]]] = {}
        for record in records:
            for name, value in record.values.items():
                if not self.left_out(name, value):
                    points = curves.setdefault(self.name_of(name), [])
                    point = (self.step_of(record), value)
                    if point not in points:
                        points.append(point)
        return curves

    def found(self, one: StoredRun, like: Mapping[str, object]) -> dict[str, list[tuple[float | None, Any]]]:
        """Return those curves of a stored run that are in `like`, without repeated points."""
        return {name: list(dict.fromkeys(points)) for name, points in one.history.items() if name in like}

    def test_a_run_is_read_back(self, tmp_path: Path) -> None:
        """History with its steps, parameters, name, outcome, identity, and the version of the library are as pinned."""
        answer = self.track(tmp_path, SentRun(information(), (*FIRST, *SECOND, LAST)))
        assert answer.error is None, answer.output
        assert answer.version == pinned(self.environment, self.package)
        assert answer.warnings == []
        [one] = self.read(tmp_path)
        expected = self.expected(*FIRST, *SECOND, LAST)
        assert self.found(one, expected) == expected
        for name in ("learning_rate", "seed", "fp16", "hidden_size"):
            path = self.parameter(name)
            assert path in one.parameters, sorted(one.parameters)
            assert self.same(one.parameters[path], {**MODEL, **CONFIGURATION}[name])
        assert one.name in (None, "a tiny run")
        assert one.status == self.statuses["finished"]
        assert answer.identities == [one.identity]
        self.check_summary(one)

    def check_summary(self, one: StoredRun) -> None:
        """Check values of the whole run where they are no curves."""

    def test_media_are_taken(self, tmp_path: Path) -> None:
        """Of the kinds that the adapter says, also twice; images are in the store, and values are as without media."""
        kinds = resolve_name(self.adapter).media
        if not kinds:
            pytest.skip("it takes none")
        source = tmp_path / "source"
        source.mkdir()
        media = [evolve(with_file(each, source), step=10) for each in MEDIA if each.kind in kinds]
        answer = self.track(tmp_path, SentRun(information(), FIRST, media=[*media, *media]))
        assert answer.error is None, answer.output
        [one] = self.read(tmp_path)
        assert self.found(one, self.expected(*FIRST)) == self.expected(*FIRST)
        assert self.images(tmp_path), sorted(each.name for each in tmp_path.rglob("*"))

    def images(self, folder: Path) -> list[str]:
        """Return the names of images in the store, or in an archive of it."""
        files = [each for each in folder.rglob("*") if each.is_file() and each.parent.name != "source"]
        inside: list[str] = []
        for each in filter(is_zipfile, files):
            with ZipFile(each) as archive:
                inside += [name for name in archive.namelist() if archive.read(name).startswith(b"\x89PNG")]
        return [*inside, *(str(each) for each in files if each.suffix == ".png")]

    @pytest.mark.matrix
    @pytest.mark.parametrize("kind", ["failed", "stopped", "preempted"])
    def test_the_outcome_is_marked(self, kind: str, tmp_path: Path) -> None:
        """The store says how a run ended, and why it failed."""
        answer = self.track(tmp_path, SentRun(information(), FIRST, outcome=OUTCOMES[kind]))
        assert answer.error is None, answer.output
        [one] = self.read(tmp_path)
        assert one.status == self.statuses[kind]
        if kind == "failed":
            self.check_problem(one)
        assert self.found(one, self.expected(*FIRST)) == self.expected(*FIRST)

    def check_problem(self, one: StoredRun) -> None:
        """Check that the error of a failed run can be read."""
        assert PROBLEM in str({**one.parameters, **one.summary, **one.more})

    @pytest.mark.parametrize("ending", [pytest.param("preempted", marks=pytest.mark.matrix), "killed"])
    def test_a_resumed_run_continues(self, ending: str, tmp_path: Path) -> None:
        """Another process continues the run, also one that was killed, with changed arguments and a repeated record."""
        if not self.resumes:
            pytest.skip("this tracker has no runs that continue")
        outcome = None if ending == "killed" else OUTCOMES[ending]
        dies = self.seconds_before_death if ending == "killed" else None
        first = self.track(tmp_path, SentRun(information(), FIRST, outcome=outcome), dies_after=dies)
        assert first.error is None, first.output
        changed = {**CONFIGURATION, "resume_from_checkpoint": "out/checkpoint-20", "seed": 8}
        resumed = information(tracked_as=first.identity, step=20, configuration=changed)
        second = self.track(tmp_path, SentRun(resumed, (FIRST[-1], *SECOND, LAST)))
        assert second.error is None, second.output
        assert second.identity == first.identity
        one = self.merged(self.read(tmp_path))
        assert one.identity == first.identity
        assert one.status == self.statuses["finished"]
        expected = self.expected(*FIRST, *SECOND, LAST)
        assert self.found(one, expected) == expected

    def merged(self, runs: list[StoredRun]) -> StoredRun:
        """Return the only run of the store; override with `joined` if each process leaves a part."""
        [one] = runs
        return one

    @pytest.mark.matrix
    def test_several_runs_in_a_process(self, tmp_path: Path) -> None:
        """Each has its own identity and its own values."""
        runs = [SentRun(information(run=f"run-{number}"), (FIRST[number],)) for number in range(2)]
        answer = self.track(tmp_path, *runs)
        assert answer.error is None, answer.output
        assert len(set(answer.identities)) == 2
        found = {one.identity: one for one in self.read(tmp_path)}
        assert set(found) == set(answer.identities)
        for number, identity in enumerate(answer.identities):
            curves = self.expected(*FIRST)
            assert self.found(found[identity], curves) == self.expected(FIRST[number])

    @pytest.mark.matrix
    def test_awkward_values_and_names(self, tmp_path: Path) -> None:
        """Values that are not finite, texts, None, and names with special characters do not affect other values."""
        values: dict[str, Value] = {
            "loss": math.nan,
            "infinite": -math.inf,
            "note": "a text",
            "nothing": None,
            "ok": True,
            "eval_f1 (macro) é": 0.25,
            "eval_a/b": 0.125,
            "learning_rate": 0.5,
        }
        answer = self.track(tmp_path, SentRun(information(), (Record(10, 0.25, values), evolve(FIRST[1]))))
        assert answer.error is None, answer.output
        [one] = self.read(tmp_path)
        rates = self.expected(Record(10, 0.25, {"learning_rate": 0.5}), Record(20, 0.5, {"learning_rate": 0.0005}))
        assert self.found(one, rates) == rates
        assert any("f1" in name and points[-1][1] == 0.25 for name, points in one.history.items()), one.history

    @pytest.mark.matrix
    def test_no_login_is_asked_for(self, tmp_path: Path) -> None:
        """On a terminal, with an empty environment, a run either works or raises an error that says what to set."""
        answer = self.track(tmp_path, SentRun(information(), FIRST), variables=self.without_login(), on_terminal=True)
        if answer.error is not None:
            assert "ConfigurationError" in answer.error["types"], answer.output
            assert any(name in answer.error["text"] for name in self.login_hints()), answer.error

    def without_login(self) -> dict[str, str]:
        """Return variables over `variables` that make the library want an account."""
        return {}

    def login_hints(self) -> tuple[str, ...]:
        """Return what the error may name: a variable to set."""
        return ()

    @pytest.mark.matrix
    def test_a_missing_package_is_an_error_of_the_constructor(self, tmp_path: Path) -> None:
        """It names what to install."""
        answer = self.track(tmp_path, SentRun(information()), hidden=[self.module])
        assert answer.error is not None
        assert "ConfigurationError" in answer.error["types"]
        assert "run `pip install " in answer.error["text"]
        assert answer.identities == []
