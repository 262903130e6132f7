"""Runs with a key: a checkpoint that was written or changed without it is not loaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import load_file, save_file

from hexloop import ConfigurationError, TrainerCallback
from hexloop.app.command_line import main
from hexloop.domain.errors import SignatureError
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights
from tests.resealing import change_manifest, reseal


def key_file(folder: Path, key: bytes, name: str = "key", mode: int = 0o600) -> str:
    path = folder / name
    path.write_bytes(key)
    path.chmod(mode)
    return str(path)


@pytest.fixture
def secret(tmp_path: Path) -> str:
    return key_file(tmp_path, b"a secret key of exactly 32 bytes")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """The files of a private key and of its public key."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return key_file(tmp_path, private, "private.pem"), key_file(tmp_path, public, "public.pem", 0o644)


def trainer_of(folder: Path, key: str | None, steps: int = 4, **given: Any) -> Any:
    saving = {"save_strategy": "steps", "save_steps": 2, "checkpoint_key": key, "lr_scheduler_type": "constant"}
    return small_trainer(folder, max_steps=steps, **{**saving, **given})


def trained(folder: Path, key: str | None, steps: int = 4) -> Any:
    trainer = trainer_of(folder, key, steps)
    trainer.train()
    return trainer


def change_weights(checkpoint: Path) -> None:
    """Double the weights, with sizes and digests that fit."""
    changed = {name: tensor * 2 for name, tensor in load_file(checkpoint / "model.safetensors").items()}
    save_file(changed, checkpoint / "model.safetensors")
    reseal(checkpoint)


@pytest.mark.parametrize("kind", ["secret", "pair"])
def test_a_signed_run_resumes_exactly(
    tmp_path: Path, secret: str, pair: tuple[str, str], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With either kind of key; the result is that of the run that was not interrupted, and of one without a key."""
    key, verifying = (secret, secret) if kind == "secret" else pair
    whole = trained(tmp_path / "whole", None, 6)
    trained(tmp_path / "runs", key)

    resumed = trainer_of(tmp_path / "runs", key, 6)
    resumed.train(resume_from_checkpoint=True)

    assert resumed.state.global_step == 6
    assert same_weights(weights(whole), weights(resumed))
    for step in (2, 4, 6):
        assert (tmp_path / f"runs/checkpoint-{step}/manifest.signature").is_file()
    assert main(["checkpoints", "verify", str(tmp_path / "runs"), "--key", verifying]) == 0
    assert main(["checkpoints", "verify", str(tmp_path / "runs")]) == 0, "a key is not needed to find damage"
    assert capsys.readouterr().out.count("checkpoint-4") == 2


def test_a_changed_checkpoint_is_refused_and_an_older_one_is_used(tmp_path: Path, secret: str) -> None:
    """Changed weights with fitting digests are good without the key. With it, the run falls back, and says so."""
    trained(tmp_path / "runs", secret)
    earlier = load_file(tmp_path / "runs/checkpoint-2/model.safetensors")
    change_weights(tmp_path / "runs/checkpoint-4")
    assert main(["checkpoints", "verify", str(tmp_path / "runs/checkpoint-4")]) == 0
    assert main(["checkpoints", "verify", str(tmp_path / "runs/checkpoint-4"), "--key", secret]) == 1

    trainer = trainer_of(tmp_path / "runs", secret, 4, save_strategy="no", learning_rate=0.0)
    with pytest.warns(UserWarning, match="checkpoint-4.*it was changed without the key"):
        trainer.train(resume_from_checkpoint=True)

    assert same_weights(earlier, weights(trainer))
    assert (tmp_path / "runs/checkpoint-4").is_dir(), "it is not renamed, as it may be good under another key"


@pytest.mark.parametrize(
    "attack", ["another key", "no signature", "signature of another", "another step", "weaker digests"]
)
def test_a_named_checkpoint_is_refused(tmp_path: Path, secret: str, attack: str) -> None:
    """With one clear error before the first step; the model is untouched."""
    if attack == "another key":
        trained(tmp_path / "runs", key_file(tmp_path, b"b" * 32, "another"))
    else:
        trained(tmp_path / "runs", secret)
    checkpoint = tmp_path / "runs/checkpoint-4"
    if attack == "no signature":
        (checkpoint / "manifest.signature").unlink()
    elif attack == "signature of another":
        shutil.copy(tmp_path / "runs/checkpoint-2/manifest.signature", checkpoint / "manifest.signature")
    elif attack == "another step":
        change_manifest(checkpoint, step=5)
    elif attack == "weaker digests":
        trained(tmp_path / "plain", None)
        shutil.copy(tmp_path / "plain/checkpoint-4/manifest.json", checkpoint / "manifest.json")
    trainer = trainer_of(tmp_path / "other", secret)
    before = weights(trainer)

    with pytest.raises(SignatureError, match=r"checkpoint-4 in .* cannot be used: it"):
        trainer.train(resume_from_checkpoint=str(checkpoint))

    assert trainer.state.global_step == 0
    assert same_weights(before, weights(trainer))


def test_nothing_that_is_signed_is_not_started_over(tmp_path: Path, secret: str) -> None:
    """If no checkpoint can be used with the key, the run ends before the first step; signing is the way out."""
    trained(tmp_path / "runs", None)

    with (
        pytest.raises(SignatureError, match="hexloop checkpoints sign checkpoint-4 --key FILE"),
        pytest.warns(UserWarning, match="it is not signed"),
    ):
        trainer_of(tmp_path / "runs", secret, 6).train(resume_from_checkpoint=True)

    assert main(["checkpoints", "sign", str(tmp_path / "runs"), "--key", secret]) == 0
    resumed = trainer_of(tmp_path / "runs", secret, 6)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 6


def test_the_best_model_is_loaded_only_if_it_is_signed(tmp_path: Path, secret: str) -> None:
    """`load_best_model_at_end` goes through the same checks: the run says that it ends with its last weights."""

    class Attack(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 4:
                for step in (2, 4):
                    change_weights(tmp_path / f"runs/checkpoint-{step}")

    trainer = trainer_of(
        tmp_path / "runs",
        secret,
        parts={"eval_dataset": rows(8), "callbacks": [Attack()]},
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        save_async=False,
    )
    with (
        pytest.warns(UserWarning, match=r"ends with its last weights.*changed without the key"),
        pytest.warns(UserWarning, match="completion marker of the run could not be written"),
        pytest.warns(UserWarning, match="changed files of checkpoint-4 in on_save"),
    ):
        trainer.train()

    assert same_weights(weights(trained(tmp_path / "undisturbed", None)), weights(trainer))


def test_a_public_key_evaluates_and_does_not_train(tmp_path: Path, pair: tuple[str, str]) -> None:
    """A run that saves needs the private key, which is said when the Trainer is constructed or trains."""
    private, public = pair
    trained(tmp_path / "runs", private)
    with pytest.raises(ConfigurationError, match="holds a public key, which only verifies"):
        trained(tmp_path / "other", public)

    evaluating = trainer_of(tmp_path / "runs", public, 4, save_strategy="no")
    evaluating.train(resume_from_checkpoint=str(tmp_path / "runs/checkpoint-4"))
    assert evaluating.state.global_step == 4
    assert main(["checkpoints", "sign", str(tmp_path / "runs"), "--key", public]) == 2


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"password", "it has 8 bytes, and a secret key has at least 32"),
        (None, "cannot be read: No such file or directory"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "its PEM holds no key"),
    ],
)
def test_files_that_are_no_key_are_refused(
    tmp_path: Path, content: bytes | None, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the Trainer is constructed, and by commands with exit code 2. Neither repeats the content or the path."""
    path = tmp_path / "hidden-place"
    if content is not None:
        key_file(tmp_path, content, "hidden-place")

    with pytest.raises(ConfigurationError, match=problem) as refused:
        trainer_of(tmp_path / "runs", str(path))

    (tmp_path / "runs").mkdir(exist_ok=True)
    assert main(["checkpoints", "verify", str(tmp_path / "runs"), "--key", str(path)]) == 2
    said = str(refused.value) + capsys.readouterr().err
    assert "hidden-place" not in said
    assert "password" not in said


def test_a_key_that_others_may_read_is_used_with_a_warning(tmp_path: Path) -> None:
    """The run goes on."""
    key = key_file(tmp_path, b"k" * 32, mode=0o644)

    with pytest.warns(UserWarning, match="Other users can read the key file"):
        trained(tmp_path / "runs", key)

    assert (tmp_path / "runs/checkpoint-4/manifest.signature").is_file()


def test_the_key_is_in_no_file(tmp_path: Path, secret: str) -> None:
    """Neither the key nor the path of its file is written beside a checkpoint."""
    trained(tmp_path / "runs", secret)

    for file in (tmp_path / "runs").rglob("*"):
        if file.is_file():
            assert b"a secret key" not in file.read_bytes(), file
            assert secret.encode() not in file.read_bytes(), file
    arguments = json.loads((tmp_path / "runs/checkpoint-4/training_args.json").read_text())
    assert arguments["checkpoint_key"] == "<CHECKPOINT_KEY>"


@pytest.mark.matrix
def test_several_processes_sign_and_verify(tmp_path: Path, secret: str) -> None:
    """Rank 0 signs for all; each rank verifies when they resume."""
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.end_to_end.small.trainers import small_trainer\n"
        "trainer = small_trainer(Path(sys.argv[1]), max_steps=int(sys.argv[3]), save_strategy='steps', save_steps=2,\n"
        "    checkpoint_key=sys.argv[2])\n"
        "trainer.train(resume_from_checkpoint=int(sys.argv[3]) > 2)\n"
        "print(f'ended at {trainer.state.global_step}')\n"  # in one piece: both ranks print
    )
    script = tmp_path / "script.py"
    script.write_text(program)

    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    def launched(steps: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, str(script), str(tmp_path / "runs"), secret, str(steps)],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    first = launched(2)
    assert first.returncode == 0, first.stderr
    assert launched(4).stdout.count("ended at 4") == 2
    for step in (2, 4):
        change_weights(tmp_path / f"runs/checkpoint-{step}")
    refused = launched(6)
    assert refused.returncode != 0
    assert "changed without the key" in refused.stderr
