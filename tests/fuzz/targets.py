"""A target for each parser: it takes bytes, and lets through only what must not happen.

Where a parser accepts its input, what it returned is checked too.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from attrs import frozen

from hexloop.adapters.contents import documents
from hexloop.adapters.contents.run_documents import RunDocuments
from hexloop.adapters.contents.safetensors_files import Stream, tensor_parts
from hexloop.adapters.device.torch import CpuDevice
from hexloop.adapters.journal import notes_in
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.documents import read_json as read_arguments
from hexloop.app.arguments.documents import read_yaml
from hexloop.app.arguments.parser import HfArgumentParser
from hexloop.app.assembly.storage import as_location, joined, split_location, storage_for
from hexloop.app.assembly.torch.transformers_checkpoints.pickled.descriptions import RefusedPickleError
from hexloop.app.assembly.torch.transformers_checkpoints.pickled.program import read_file
from hexloop.app.pages import journal_lines
from hexloop.app.pages.history import RunHistory
from hexloop.app.pages.journal_lines import RunLines, journal_note
from hexloop.app.pages.media_section import file_shown
from hexloop.app.pages.page import content_of, search_content
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.system import system_metrics_in
from hexloop.app.pages.trials import ShownSearch, in_order, shown_search
from hexloop.domain import journal_index
from hexloop.domain.checkpoints.manifest import (
    Manifest,
    is_set_aside,
    marks_unfinished,
    seal,
    staged_name,
    stays_inside,
    step_of,
)
from hexloop.domain.errors import CheckpointError, ConfigurationError, HexloopError
from hexloop.domain.folders import Folder
from hexloop.domain.journal import compare, timelines
from hexloop.domain.json_documents import json_part, read_json
from hexloop.domain.media import ENDINGS, kept_of
from hexloop.domain.redaction import printable, printable_lines, redact, redacted
from hexloop.domain.run_folder import MEDIA, MEDIA_INDEX, system_file
from hexloop.domain.search.records import DEFINITION, LINES, read_search
from hexloop.domain.search.selection import best_trials
from hexloop.domain.state import RunState
from hexloop.ports.state import Part
from tests.end_to_end.small.models import net
from tests.fuzz.edits import changed_document, random_change
from tests.fuzz.random_cases import changed
from tests.secret_forms import FORMS, SECRET

CORPUS = Path(__file__).parent / "corpus"

Mutate = Callable[[bytes, Random, list[bytes]], bytes]


def changed_json(data: bytes, random: Random, others: list[bytes]) -> bytes:
    """Change values of a JSON document, or, now and then, its bytes."""
    if random.random() < 0.25:
        return changed(data, random, others)
    try:
        document = json.loads(data)
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            document = changed_document(document, random_change(document, random))
        return json.dumps(document).encode()
    except (ValueError, RecursionError, KeyError, IndexError, TypeError):
        return changed(data, random, others)


@frozen
class Target:
    """What is fuzzed. run: takes a case, and raises for a finding. mutate: makes a case from another.

    cases_per_process: the process ends after so many, which shows in which case native code has gone wrong.
    structured: whether a case has a structure of its own, so that only `mutate` changes it. first: makes cases to start
    from, besides those of the corpus. weight: its share of the time.
    """

    name: str
    run: Callable[[bytes], None]
    mutate: Mutate = changed
    cases_per_process: int = 2000
    structured: bool = False
    first: Callable[[], list[bytes]] = list
    weight: int = 1

    def seeds(self) -> list[bytes]:
        """Return the cases to start from: those of the corpus, or else those that are made."""
        folder()  # before processes are forked, so that it is removed at the end of this one
        kept = [path.read_bytes() for path in sorted((CORPUS / self.name).glob("*")) if path.is_file()]
        return [*kept, *self.first()] or [b""]


@cache
def folder() -> Path:
    """Return a folder for cases, in memory where there is such a place, that is removed when this process ends."""
    memory = Path("/dev/shm")
    return removed_at_exit(Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if os.access(memory, os.W_OK) else None)))


def removed_at_exit(made: Path) -> Path:
    """Return a folder, which is removed when the process that called this ends, and not by those forked from it."""
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(made, ignore_errors=True) if os.getpid() == owner else None)
    return made


def _file(data: bytes, name: str) -> Path:
    path = folder() / f"{os.getpid()}-{name}"
    path.write_bytes(data)
    return path


# Documents


def bounded_json(data: bytes) -> None:
    """read_json refuses with a ValueError, or returns what json.loads returns."""
    try:
        value = read_json(data)
    except ValueError:
        return
    assert value == json.loads(data)
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


def manifest(data: bytes) -> None:
    """A manifest is refused, or is written as it was read."""
    for sealed in (data, seal(data)):
        try:
            found = Manifest.from_json(sealed)
        except CheckpointError:
            continue
        assert Manifest.from_json(found.to_json()) == found
        assert all(map(stays_inside, found.files))


def run_state(data: bytes) -> None:
    """A run state is refused, or can be written and read again."""
    found = RunDocuments({"run_state.json"}, lambda path, start=0: iter([memoryview(data)[start:]]))
    try:
        state = found.state()
        list(found.stored())
        for name in ("run_setup", "optimizer", "random", "losses", "random-rank-00001"):
            found.read(name)
    except CheckpointError:
        return
    assert isinstance(state, RunState)
    encoded = documents.encode_state(state)
    assert documents.encode_state(documents.state_of(_without_version(encoded))) == encoded


def _without_version(encoded: bytes) -> dict[str, Any]:
    document: dict[str, Any] = documents.read([encoded])
    del document["schema_version"]
    return document


def random_states(data: bytes) -> None:
    """Random states are refused with a ValueError, or the generators work."""
    try:
        document = documents.read([data])
    except CheckpointError:
        return
    if not isinstance(document, dict):
        return
    parts = [json_part(name, value) for name, value in _plain(document).items()]
    try:
        CpuDevice().load(parts)
    except ValueError:
        return
    import random

    drawn = [random.random(), random.gauss(0, 1), *np.random.standard_normal(700), *torch.randn(700).tolist()]
    assert np.isfinite(drawn).all()


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """Leave out what no part can hold, as reading a checkpoint does."""
    made = {}
    for name, value in document.items():
        try:
            json.dumps(value)
        except TypeError:
            continue
        made[name] = value
    return made


@cache
def _optimizer_parts() -> dict[str, Part]:
    model, optimizer = _model_and_optimizer()
    _step(model, optimizer)
    return {part.name: part for part in OptimizerState(model, optimizer).export()}


def _model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = net()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def optimizer_document() -> bytes:
    """Return the options and the state of an optimizer as they are saved, without its tensors."""
    return bytes(_optimizer_parts()["param_groups"].read())


def optimizer(data: bytes) -> None:
    """The options and groups of an optimizer are refused with a ValueError, or it makes steps."""
    try:
        document = documents.read([data])
        part = json_part("param_groups", document)
    except (CheckpointError, TypeError):
        return
    model, made = _model_and_optimizer()
    tensors = [each for name, each in _optimizer_parts().items() if name != "param_groups"]
    try:
        OptimizerState(model, made).load([*tensors, part])
    except (ValueError, CheckpointError):
        return
    for _ in range(3):
        _step(model, made)
    assert all(parameter.shape == other.shape for parameter, other in zip(model.parameters(), net().parameters()))  # noqa: B905


# Tensors and pickles


def header(data: bytes) -> None:
    """A safetensors file is refused, or each of its tensors has the bytes that its shape says."""
    stream = Stream(lambda path, start=0: iter([memoryview(data)[start:]] if start < len(data) else []))
    try:
        parts = tensor_parts(stream, "model.safetensors")
    except CheckpointError:
        return
    assert sum(len(part.read()) for part in parts) <= len(data)
    for part in parts:
        assert part.length == int(np.prod(part.shape, dtype=object)), part


LIMITS = {"document_bytes": 1 << 24, "document_values": 100_000, "document_depth": 100}


def pickle(data: bytes) -> None:
    """A pickled file is refused, or is described by JSON that is not much longer than it."""
    try:
        value = read_file(io.BytesIO(data), LIMITS)
    except (RefusedPickleError, RecursionError, OverflowError, OSError):
        return  # those that the program of the process reports as refusals
    json.dumps(value)


# Texts


def yaml(data: bytes) -> None:
    """A YAML file is refused with a ConfigurationError, or holds values that JSON could."""
    for older in (False, True):
        try:
            read_yaml(_file(data, "recipe.yaml"), older)
        except ConfigurationError as error:
            _check_message(error)


def json_arguments(data: bytes) -> None:
    """A JSON file of arguments is refused with a ConfigurationError."""
    try:
        read_arguments(_file(data, "arguments.json"))
    except ConfigurationError as error:
        _check_message(error)


@cache
def _parser() -> HfArgumentParser:
    return HfArgumentParser(TrainingArguments)


def arguments(data: bytes) -> None:
    """Training arguments in a YAML file are refused with a ConfigurationError, or make TrainingArguments."""
    parser = _parser()
    for parse, name in ((parser.parse_yaml_file, "arguments.yaml"), (parser.parse_json_file, "arguments.json")):
        try:
            parse(_file(data, name))
        except ConfigurationError as error:
            _check_message(error)


def journal(data: bytes) -> None:
    """A journal can be read, and a run in it does not differ from itself."""
    runs = timelines(notes_in(_file(data, "journal.jsonl")))
    for timeline in runs.values():
        assert compare(timeline, timeline).first is None
    for one in list(runs.values())[:3]:
        for other in list(runs.values())[:3]:
            compare(one, other)


def journal_page(data: bytes) -> None:
    """A page of any journal and index is made, and an index changes nothing of what the lines say.

    A case is the journal and, after a null byte, the index. Windows end early, and all of them are compared.
    """
    journal, _, index = data.partition(b"\0")
    path = _file(journal, "paged.jsonl")
    made = journal_index.windows_in(index.splitlines()) if index else _windows_of(journal)
    path.with_name(journal_index.INDEX).write_bytes(b"".join(window.line() for window in made))
    records = []
    for indexed in (True, False):
        journal_index.INDEXED_FROM, journal_lines.CHECKED = (0, 1.0) if indexed else (1 << 40, 1.0)
        lines = RunLines(path, journal_note)
        lines.refresh()
        records.append([repr(run) for run in lines.runs.values()])
        page = [RunRecord("run", "run", str(folder()), run, path.name) for run in list(lines.runs.values())[:3]]
        if page and indexed:
            json.dumps(content_of(page, 1e9).document)
    assert records[0] == records[1]
    lines.read_edges()


RUN = "a run"

MEDIUM = (
    '{"run": "a run", "time": 1.0, "name": "a", "step": 1, "epoch": 0.5, "kind": "KIND", "content": CONTENT, '
    '"index": 0, "caption": "", "file": "00000000000000000000000000000000.ENDING", "size": 9}'
)
MEDIA_CASES = {
    "text": ("{}", b'{"text": "a <b>"}'),
    "table": ("{}", b'{"columns": ["a", "b"], "rows": [[1, "<i>"], [null, true]]}'),
    "histogram": ("{}", b'{"edges": [0, 1.5, 2], "counts": [3, 4]}'),
    "image": ('{"width": 3, "height": 2}', b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x03\x00\x00\x00\x02"),
    "audio": ('{"rate": 8000, "seconds": 1.0, "channels": 1}', b"RIFF"),
}


def media_cases() -> list[bytes]:
    """Return an index and a file of each kind."""
    lines = [
        MEDIUM.replace("KIND", kind).replace("CONTENT", content).replace("ENDING", ENDINGS[kind]).encode()
        + b"\0"
        + data
        for kind, (content, data) in MEDIA_CASES.items()
    ]
    return lines


def media(data: bytes) -> None:
    """A page of any index and file of media is made, and shows files of the folder alone.

    A case is the index and, after a null byte, what the files of all endings hold.
    """
    index, _, content = data.partition(b"\0")
    place = folder() / f"{os.getpid()}-media"
    (place / MEDIA).mkdir(parents=True, exist_ok=True)
    (place / MEDIA / MEDIA_INDEX).write_bytes(index)
    for ending in set(ENDINGS.values()):
        (place / MEDIA / f"{'0' * 32}.{ending}").write_bytes(content)
    history = RunHistory(RUN)
    for addresses in (None, ["a run"]):
        page = content_of([RunRecord("run", "run", str(place), history, "")], 1e9, addresses)
        json.dumps(page.document, allow_nan=False)
    for line in index.split(b"\n"):
        try:
            kept = kept_of(json.loads(line))
        except (ValueError, RecursionError):
            continue
        if kept is None:
            continue
        assert re.fullmatch(r"[0-9a-f]{32}\.(json|png|wav)", kept.media.file), kept.media.file
        try:
            shown, kind = file_shown(place, kept.media.file, kept.media.kind)
        except OSError:
            continue
        assert kind in ("image/png", "audio/wav") or json.loads(shown)


def changed_media(data: bytes, random: Random, others: list[bytes]) -> bytes:
    """Change the index, or what the files hold."""
    index, _, content = data.partition(b"\0")
    if random.random() < 0.6:
        lines = [changed_json(line, random, others) for line in index.split(b"\n")]
        return b"\n".join(lines) + b"\0" + content
    return index + b"\0" + changed_json(content, random, others)


def system(data: bytes) -> None:
    """The system metrics of any file are read: as many values as times, which ascend."""
    place = folder() / f"{os.getpid()}-system"
    path = place / system_file(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    for rank in system_metrics_in(place, RUN).ranks:
        assert all(len(each) == len(rank.times) == len(rank.steps) for each in rank.values.values())
        assert all(one < other for one, other in pairwise(rank.times))


def system_cases() -> list[bytes]:
    """Return a file of a session."""
    began = '{"kind": "began", "run": "a run", "rank": 0, "host": "h", "process": 1, "step": 0, "time": 1.0}'
    samples = [f'{{"time": {time}.5, "step": {time}, "cpu": 1.5, "gpu_use": 2}}' for time in range(1, 4)]
    return ["\n".join([began, *samples]).encode()]


def _windows_of(journal: bytes) -> list[journal_index.Window]:
    lines = journal.split(b"\n")[:-1]
    cut = len(lines) // 2
    first = journal_index.window_of(0, lines[:cut])
    return [first, journal_index.window_of(first.end, lines[cut:])] if cut else []


def search(data: bytes) -> None:
    """The folder of a search is refused, or its trials lie within it, can be ordered, and are shown on a page.

    A case is `search.json` and, after a null byte, `search.jsonl`.
    """
    definition, _, lines = data.partition(b"\0")
    place = folder() / f"{os.getpid()}-search"
    place.mkdir(exist_ok=True)
    (place / DEFINITION).write_bytes(definition)
    (place / LINES).write_bytes(lines)
    try:
        record = read_search(Folder(str(place)))
    except CheckpointError:
        return
    assert record is not None
    trials = in_order(record)
    for trial in trials:
        assert stays_inside(trial.name), trial.name
        assert trial.checkpoint is None or stays_inside(trial.checkpoint), trial.checkpoint
        trial.past()
    best_trials(trials, record.definition.directions)
    shown = shown_search(place)
    assert shown == ShownSearch(shown.folder, record.definition, trials, shown.remarks)
    json.dumps(search_content(shown).document)


def changed_search(data: bytes, random: Random, others: list[bytes]) -> bytes:
    """Change the definition, one of the lines, or any bytes."""
    definition, separator, lines = data.partition(b"\0")
    split = lines.splitlines()
    if not separator or not split or random.random() < 0.2:
        return changed(data, random, others)
    if random.random() < 0.3:
        return changed_json(definition, random, others) + separator + lines
    chosen = random.randrange(len(split))
    split[chosen] = changed_json(split[chosen], random, others)
    return definition + separator + b"\n".join(split) + b"\n"


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _check_message(error: HexloopError) -> None:
    assert str(error)


def text_of(data: bytes) -> str:
    """Return any text, with lone surrogates too."""
    return data.decode("utf-8", "surrogatepass" if b"\xed\xa0" in data else "surrogateescape")


def printed(data: bytes) -> None:
    """Text that is printed has no control characters, and is not changed by being made printable again."""
    try:
        text = text_of(data)
    except UnicodeDecodeError:
        return
    assert not _CONTROL.search(printable(text))
    assert not _CONTROL.search(printable_lines(text).replace("\n", ""))
    assert printable(printable(text)) == printable(text)
    printable_lines(text).encode()


OTHER = "Jh4Tf6Gd1Sa9Pq2Wz5Xc"
"""A secret that no case has: those of the corpus have that of the forms, and parts of it."""


def redaction(data: bytes) -> None:
    """No secret is left in a text, whatever is around it, and nothing is removed twice."""
    text = data.decode("utf-8", "replace")
    removed = redact(text)
    assert redact(removed) == removed, (text, removed)
    for form in FORMS:
        assert OTHER not in redact(f"{text}\n{form.replace(SECRET, OTHER)}\n{text}"), form
    redacted({text[:20]: text, "hub_token": [text], "more": {"password": text}})


def names(data: bytes) -> None:
    """Names of files and locations are taken or refused, and none leads out of its folder."""
    text = data.decode("utf-8", "surrogateescape")
    step_of(text), staged_name(text), marks_unfinished(text), is_set_aside(text)
    if stays_inside(text):
        inside = os.path.normpath(os.path.join("/folder", text))
        assert inside.startswith("/folder/"), text
    try:
        as_location(text), split_location(text), joined(text, "checkpoint-1")
        storage_for(text)
    except HexloopError as error:
        _check_message(error)


PARSERS = (
    Target("json", bounded_json, changed_json),
    Target("manifest", manifest, changed_json),
    Target("run_state", run_state, changed_json),
    Target("random", random_states, changed_json, 500),
    Target("optimizer", optimizer, changed_json, 200, first=lambda: [optimizer_document()]),
    Target("header", header),
    Target("pickle", pickle),
    Target("yaml", yaml),
    Target("json_arguments", json_arguments, changed_json),
    Target("arguments", arguments, changed_json),
    Target("journal", journal),
    Target("journal_page", journal_page, cases_per_process=500),
    Target("media", media, changed_media, cases_per_process=500, first=media_cases),
    Target("system", system, first=system_cases),
    Target("search", search, changed_search, cases_per_process=500),
    Target("printed", printed),
    Target("redaction", redaction, cases_per_process=500),
    Target("names", names),
)
