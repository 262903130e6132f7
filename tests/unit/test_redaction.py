"""Secrets are removed from text, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain import redaction
from hexloop.domain.errors import CheckpointError, ConfigurationError, StorageError
from hexloop.domain.redaction import (
    REMOVED,
    is_secret_name,
    printable,
    printable_lines,
    redact,
    redacted,
    remember_secrets,
    secret_values,
    user_of,
    without_user,
)
from tests.secret_forms import FORMS, SECRET

HARMLESS = (
    "num_tokens=5 tokens_per_second: 3.5 max_tokens=7 average_tokens_across_devices=True",
    "pad_token='<pad>' bos_token=<s> eos_token: </s>",
    "https://huggingface.co/docs/safetensors and file:///tmp/runs/a b@c",
    "s3://bucket/runs/checkpoint-5 has 3 files; mailto:me@example.org",
    "password: None, secret=null, hub_token=<HUB_TOKEN>, token: true",
    "The URL contains a password, which would end up in logs and checkpoints.",
    "loss=0.25, learning_rate=1e-05, grad_norm=1.5 at step 1,000",
    "basic understanding of bearer bonds",
)


@pytest.mark.parametrize("form", FORMS)
def test_secrets_are_removed(form: str) -> None:
    """Whatever is around them; removing them twice changes nothing."""
    for text in (form, f"Cannot read {form}: denied", f"['{form}']", f"{form}\n{form}", f"sig=\n{form}"):
        clean = redact(text)
        assert SECRET not in clean
        assert redact(clean) == clean
    assert SECRET not in str(redacted({"a": [form, {"b": (form,)}], "n": 5}))


@pytest.mark.parametrize("text", ["", "None", "null", "true", "false", "<HUB_TOKEN>"])
def test_a_secret_that_is_not_set_does_not_look_set(text: str) -> None:
    """A text that says that there is no value stays, under a secret name too."""
    assert redacted({"checkpoint_key": text, "more": {"password": text}}) == {
        "checkpoint_key": text,
        "more": {"password": text},
    }
    assert redacted({"checkpoint_key": "none of it"}) == {"checkpoint_key": REMOVED}


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_is_unchanged(text: str) -> None:
    """Names, numbers, URLs without secrets, and sentences about secrets."""
    assert redact(text) == text


@given(st.text())
def test_any_text_is_redacted_once(text: str) -> None:
    """Removing secrets from any text twice changes nothing."""
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "piece",
    ["://", "a://b:", "?key=", "token=", 'password: "', "Bearer ", "eyJ", "-----BEGIN PRIVATE KEY-----", "sk-"],
)
def test_long_texts_take_no_time(piece: str) -> None:
    """Patterns take time proportional to the text; the quadratic ones would take minutes here."""
    redact(piece * (300_000 // len(piece)))


def test_values_with_a_secret_name_are_removed() -> None:
    """By the name alone, whatever the value looks like; special tokens of tokenizers are no secrets."""
    values = {"password": "abc", "hub_token": "x", "pad_token": "pad", "num_tokens": 5, "secret": None, "token": "<x>"}
    assert redacted(values) == {**values, "password": "***", "hub_token": "***"}
    assert all(map(is_secret_name, ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD")))
    assert not any(map(is_secret_name, ("eos_token", "num_tokens", "learning_rate", "keyboard", "output_dir")))


def test_values_of_other_types_stay_as_they_are() -> None:
    """A document may hold what JSON does not have, such as a date."""
    other = object()
    assert redacted({"a": [other, None, True, 1.5]}) == {"a": [other, None, True, 1.5]}


def test_known_values_are_removed_wherever_they_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of environment variables; short ones would hide ordinary words."""
    monkeypatch.setattr(redaction, "_known", set())
    variables = {"SERVICE_TOKEN": "plain words", "OTHER_TOKEN": "abc", "HOME": "somewhere", "A_KEY": 5}
    remember_secrets(secret_values(variables))
    assert redact("with plain words in abc somewhere") == "with *** in abc somewhere"


def test_the_folder_of_the_shell_is_not_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """PWD is a folder in an environment, so paths in messages stay readable; DB_PWD is a password."""
    monkeypatch.setattr(redaction, "_known", set())
    remember_secrets(secret_values({"PWD": "/home/someone", "DB_PWD": "correct horse"}))
    assert redact("/home/someone/runs, correct horse") == "/home/someone/runs, ***"


def test_a_remembered_secret_is_removed_wherever_it_is() -> None:
    """In texts that have it; others are unchanged."""
    remember_secrets(["Jb4-a-remembered-secret"])
    assert redact("It begins with Jb4-a-remembered-secret.") == f"It begins with {REMOVED}."
    assert redact("It begins with nothing.") == "It begins with nothing."


def test_errors_contain_no_secrets() -> None:
    """Neither their text nor the problems of a configuration."""
    text = f"s3://user:{SECRET}@bucket cannot be read."
    for error in (CheckpointError(text), StorageError(text), ConfigurationError([text, "other"])):
        assert SECRET not in str(error)
        assert "s3://***@bucket" in str(error)
    assert SECRET not in ConfigurationError([text]).problems[0]


@given(st.text())
def test_printed_text_has_no_control_characters(text: str) -> None:
    """It is printed on one line, or on its own lines, and can be encoded."""
    for shown in (printable(text), printable_lines(text).replace("\n", "")):
        assert shown.isprintable() or all(character.isprintable() or ord(character) > 0x9F for character in shown)
        assert "\x1b" not in shown
        shown.encode()
    assert "\n" not in printable(text)


def test_escapes_are_readable() -> None:
    """Ordinary text is unchanged; what a terminal would obey is escaped."""
    assert printable("Grüße, 世界 🙂") == "Grüße, 世界 🙂"
    assert printable("\x1b[31mred\x07\r\n\t\x9b\u202e\ud800") == "\\x1b[31mred\\x07\\r\\n\\t\\x9b\\u202e\\ud800"
    assert printable_lines("a\nb\r") == "a\nb\\r"


PASSWORDS = (
    "pass-word",
    "p@ss",
    "pa/ss",
    "p?ss",
    "p#ss",
    "p:ss",
    "p ss",
    "[pass",
    "%40pass",
    "p'ss",
    'p"ss',
    "<p>",
)


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("scheme", ["file", "s3", "https", "nosuch"])
def test_user_and_password_of_a_url_are_found(scheme: str, password: str) -> None:
    """Whatever characters they have; without them, the rest of the URL is left."""
    for rest in ("host/x", "host", "host:80/x"):
        url = f"{scheme}://user:{password}@{rest}"
        assert user_of(url) == f"user:{password}"
        assert without_user(url) == f"{scheme}://{rest}"


@pytest.mark.parametrize(
    "url",
    ["s3://bucket/a@b", "s3://arn:aws:s3:eu-1:12:accesspoint/b", "memory://x:80/y@z", "/a/b@c:d", "https://h:1", ""],
)
def test_other_urls_have_no_user(url: str) -> None:
    """Nor have paths."""
    assert user_of(url) == ""
    assert without_user(url) == url


def test_a_password_with_several_signs_is_removed_from_text() -> None:
    """Up to the last one before the host."""
    assert redact("see s3://user:p@ss@w@host/x@y now") == "see s3://***@host/x@y now"
