"""No secret appears in a file or in the output of a run, a failure, a report or a card."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.secret_forms import FORMS, SECRET
from tests.warm_python import warm_python

RUN = """
import sys, json
from pathlib import Path
from hexloop import Trainer, TrainingArguments
from tests.end_to_end.small.models import net, rows
forms = json.loads(sys.argv[2])
failing = len(sys.argv) > 3
class Failing(Trainer):
    def compute_loss(self, *args, **kwargs):
        if failing and self.state.global_step == 1:
            from hexloop import StorageError
            raise StorageError("Cannot reach " + " and ".join(forms))
        return super().compute_loss(*args, **kwargs)
args = TrainingArguments(
    output_dir=sys.argv[1], use_cpu=True, max_steps=2, save_strategy="steps", save_steps=1, logging_steps=1,
    report_to=[], run_name=forms[0], hub_token=forms[1], resume_from_checkpoint=forms[2], log_level="info",
    journal="steps",
)
trainer = Failing(net(), args, train_dataset=rows(16))
trainer.train()
trainer.save_model()
trainer.create_model_card(model_name=forms[0])
print(repr(args))
"""


def run(code: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [warm_python(), *code], env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def assert_no_secret(folder: Path, ended: subprocess.CompletedProcess[str]) -> None:
    assert SECRET not in ended.stdout + ended.stderr
    found = [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not found


def with_three(number: int) -> list[str]:
    """Three forms, the last of which names a checkpoint."""
    return [FORMS[number], FORMS[(number + 7) % len(FORMS)], FORMS[(number + 13) % len(FORMS)]]


@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=[pytest.mark.matrix] if number else []) for number in range(0, len(FORMS), 8)],
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_run_writes_and_prints_no_secret(tmp_path: Path, number: int, fails: bool) -> None:
    """In its name, token, checkpoint and options, and in the error that ends it."""
    given = [str(tmp_path / "output"), json.dumps(with_three(number)), *["fails"] * fails]
    ended = run(["-c", RUN, *given], SERVICE_TOKEN=SECRET)
    assert (ended.returncode != 0) == fails, ended.stderr
    if fails:
        assert "Cannot reach" in ended.stderr
    assert_no_secret(tmp_path, ended)
    private = [path for name in ("training_args.json", "journal.jsonl") for path in (tmp_path / "output").rglob(name)]
    assert len(private) >= 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


@pytest.mark.matrix
def test_commands_print_no_secret(tmp_path: Path) -> None:
    """A command that cannot use a URL refuses it without repeating what is secret in it."""
    code = (
        "import sys\nfrom hexloop.app.command_line import main\n"
        "for words in (['list'], ['verify'], ['show'], ['prune', '--keep', '1'], ['import', '--to', 'x']):\n"
        "    main(['checkpoints', words[0], sys.argv[1], *words[1:]])\n"
        "main(['doctor'])\n"
    )
    proxy = f"http://user:{SECRET}@localhost:1"
    urls = [form for form in FORMS if "://" in form]
    with ThreadPoolExecutor(len(urls)) as threads:  # each waits half a minute for hosts that do not exist
        tried = [threads.submit(run, ["-c", code, url], HF_TOKEN=SECRET, HTTPS_PROXY=proxy) for url in urls]
    for each in tried:
        ended = each.result()
        assert ended.stderr.count("hexloop: ") == 5, ended.stderr
        assert_no_secret(tmp_path, ended)


def test_a_token_that_is_no_text_is_not_repeated() -> None:
    """Whatever type it has."""
    from hexloop import ConfigurationError, TrainingArguments

    with pytest.raises(ConfigurationError) as raised:
        TrainingArguments("output", hub_token=[SECRET])  # type: ignore[arg-type]
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("location", ["simplecache::s3://bucket/folder", "zip://a::file:///tmp/x"])
def test_a_chain_of_urls_is_refused(tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for a local folder."""
    from hexloop import ConfigurationError
    from hexloop.app.assembly.storage import storage_for

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="is a chain of URLs"):
        storage_for(location)
    assert not list(tmp_path.iterdir())
