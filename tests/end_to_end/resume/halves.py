"""The parts of many interrupted runs. Run as `python -m tests.end_to_end.resume.halves CASES FOLDER PART`.

CASES is a JSON file of numbers and cases. PART is one process's part of each run: "whole" runs every case without an
interruption, 0 from its start to its first interruption, 1 from there to the next or to its end, and so on. Results go
to FOLDER/<number of the case>/<part>.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hexloop.app.testing.recording import RecordedRun, from_json, record_run, to_json
from tests.covering import Choice
from tests.end_to_end.resume.cases import interruptions, make_trainer


def read(folder: Path, part: str) -> RecordedRun:
    """Return what a process recorded of a case."""
    return from_json((folder / f"{part}.json").read_text())


def run_part(case: Choice, number: int, folder: Path, part: str) -> None:
    """Run a part of a case, if it has that part, and write the record."""
    if part == "whole":
        noted = record_run(make_trainer(case, str(folder / "whole")))
    else:
        turn, cuts = int(part), interruptions(case, number, read(folder, "whole").last_step)
        if turn > len(cuts):
            return
        cut, stop = cuts[turn] if turn < len(cuts) else (None, False)
        noted = record_run(make_trainer(case, str(folder / "run")), resume=turn > 0, cut=cut, stop=stop)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}.json").write_text(to_json(noted))


def main(cases: str, folder: str, *parts: str) -> None:
    for part in parts:
        for number, case in json.loads(Path(cases).read_text()):
            run_part(case, number, Path(folder, str(number)), part)


if __name__ == "__main__":
    main(*sys.argv[1:])
