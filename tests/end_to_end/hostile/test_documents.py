"""Hostile JSON in a checkpoint: refused with a line that names the file, in bounded time and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.checkpoint_folder import copy_of, make_checkpoint
from tests.end_to_end.hostile.doors import ask
from tests.resealing import change_manifest, reseal

MANY_KEYS = b"{" + b"".join(b'"%d":1,' % number for number in range(200_000)) + b'"7":1}'

DOCUMENTS = {
    "many empty lists": (b"[" + b"[]," * 20_000_000 + b"[]]", "values; document_values raises this limit"),
    "many keys and one duplicate": (MANY_KEYS, "has the key '7' twice in an object"),
    "many levels": (b"[" * 10_000_000, "nested in more than 100 levels|values"),
    "a number of many digits": (b"[1" + b"0" * 60_000_000 + b"]", "a number of more than 1000 digits"),
    "a text without an end": (b'["' + b'\\"' * 10_000_000, "Unterminated string"),
    "a text that is not Unicode": (b'{"schema_version": 2, "\\ud800": 1}', "not Unicode"),
    "more bytes than a document has": (b" " * (150 << 20), "longer than 134217728 bytes"),
    "a number that is none": (b'{"schema_version": NaN}', "holds NaN"),
    "a list": (b"[]", "run_state.json is not a JSON object"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("whole"))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_hostile_run_state_is_refused(whole: Path, tmp_path: Path, name: str) -> None:
    """The run state, with a matching digest: a resume and a comparison are refused, and the others go on without it."""
    data, words = DOCUMENTS[name]
    checkpoint = copy_of(whole, tmp_path / "spoiled")
    (checkpoint / "run_state.json").write_bytes(data)
    reseal(checkpoint)
    resumed, compared, shown, listed, verified, pruned = ask(
        ["resume", tmp_path / "output", checkpoint],
        ["checkpoints", "diff", checkpoint, whole],
        ["checkpoints", "show", checkpoint],
        ["checkpoints", "list", checkpoint.parent],
        ["checkpoints", "verify", checkpoint],
        ["checkpoints", "prune", checkpoint.parent, "--keep", "1", "--keep-best"],
        declared=len(data) / 2**20,
    )
    assert any(resumed.refuses("run_state.json", part) for part in words.split("|")), resumed
    assert any(compared.refuses("run_state.json", part, code=2) for part in words.split("|")), compared
    assert "it cannot be read" in shown.output
    assert (shown.code, listed.code, verified.code) == (0, 0, 0)
    assert pruned.refuses("does not say which that is")


HUGE = int("9" * 400)

MANIFESTS: dict[str, tuple[dict[str, Any], str]] = {
    "a huge size": ({"files": {"a": {"size": HUGE, "digest": "x:y"}}}, "is not of a size from 0 to"),
    "a negative step": ({"step": -1}, "step: -1 is not between 0 and"),
    "a huge step": ({"step": HUGE}, "step: a number of"),
    "a step that is true": ({"step": True}, "step: True is not a whole number"),
    "a run that is a number": ({"run": 5}, "run: 5 is not text"),
    "a name that is not Unicode": ({"run": "\ud800"}, "not Unicode"),
    "files that are a list": ({"files": []}, "files: [] is not a JSON object"),
    "an entry of another kind": ({"more": 1}, "unknown entries 'more'"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_hostile_manifest_is_refused(whole: Path, tmp_path: Path, name: str) -> None:
    """By every door, with the checkpoint and the entry."""
    entries, words = MANIFESTS[name]
    checkpoint = copy_of(whole, tmp_path / "spoiled")
    change_manifest(checkpoint, **entries)
    resumed, compared, shown, verified, listed, pruned = ask(
        ["resume", tmp_path / "output", checkpoint],
        ["checkpoints", "diff", checkpoint, whole],
        ["checkpoints", "show", checkpoint],
        ["checkpoints", "verify", checkpoint],
        ["checkpoints", "list", checkpoint.parent],
        ["checkpoints", "prune", checkpoint.parent, "--keep", "1", "--run", "some"],
    )
    for answer, code in ((resumed, 1), (compared, 2), (shown, 1)):
        assert answer.refuses("checkpoint-2", "manifest", words, code=code), answer
    assert pruned.refuses("The run some has no checkpoint")
    for answer in (verified, listed):
        assert (answer.code, words in answer.output) == (1, True), answer


def test_a_raised_limit_lets_a_large_document_in(whole: Path, tmp_path: Path) -> None:
    """`--limit` of the command line: the document is then read, and is not refused for its size."""
    checkpoint = copy_of(whole, tmp_path / "spoiled")
    content = json.loads((checkpoint / "run_state.json").read_bytes())
    content["run_state"]["history"] = [{"step": 1, "more": [[]] * 200_000}]
    (checkpoint / "run_state.json").write_bytes(json.dumps(content, separators=(",", ":")).encode())
    reseal(checkpoint)
    lowered, usual = ask(
        ["checkpoints", "show", checkpoint, "--limit", "document_values=1000"],
        ["checkpoints", "show", checkpoint],
    )
    assert "it cannot be read" in lowered.output
    assert "log_entries" in usual.output
