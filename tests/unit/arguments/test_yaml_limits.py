"""YAML and JSON files from outside: each is refused with its file and line, or read, within limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.arguments.documents import read_json, read_yaml
from hexloop.app.arguments.yaml_text import BoundedLoader, CoreSchemaLoader, InvalidYAMLError, compose, construct
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.limits import reading_limits


def aliases(levels: int) -> str:
    """A few lines that stand for 2 ** levels values."""
    lines = ["a0: &a0 [1, 1]"]
    lines += [f"a{level}: &a{level} [*a{level - 1}, *a{level - 1}]" for level in range(1, levels)]
    return "\n".join(lines)


FILES = {
    "aliases of aliases": (aliases(20), "with its aliases expanded it has more than 20000 values; recipe_values"),
    "many keys": ("".join(f"key {number}: 1\n" for number in range(50_000)), "more than 20000 values"),
    "an alias of its own collection": ("a: &a [*a]", "an alias stands for a collection that contains it"),
    "many levels": ("[" * 20_000, "nested in more than 50 levels; recipe_depth raises this limit"),
    "many levels of mappings": ("".join(f"{' ' * level}a:\n" for level in range(60)), "nested in more than 50 levels"),
    "a number that is none": ("a: !!int foo", "'foo' is not a value of int"),
    "a time that is none": ("a: !!timestamp never", "'never' is not a value of timestamp"),
    "bytes that are none": ("a: !!binary é", "base64|binary|not a value"),
    "an object": ("a: !!python/object:os.system {}", "could not determine a constructor"),
    "an unknown alias": ("a: *b", "undefined alias"),
    "a control character": ("a: \x07", "special characters are not allowed"),
    "a key that is a collection": ("? [a]\n: 1", "unhashable key"),
}


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_hostile_yaml_is_refused_with_its_line(tmp_path: Path, name: str, older: bool) -> None:
    """One line that names the file, by both schemas, before anything is expanded."""
    text, reason = FILES[name]
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as raised:
        read_yaml(path, older_schema=older)
    assert any(each in str(raised.value) for each in reason.split("|")), raised.value
    assert str(raised.value).startswith(f"{path}")
    assert len(str(raised.value).splitlines()) == 1


def test_dates_of_the_older_schema_are_checked(tmp_path: Path) -> None:
    """A date that does not exist is refused where it would be read as one."""
    path = tmp_path / "arguments.yaml"
    path.write_text("a: 2020-13-45")
    assert read_yaml(path).values == {"a": "2020-13-45"}
    with pytest.raises(ConfigurationError, match=r"line 1: Invalid YAML \('2020-13-45' is not a value of time"):
        read_yaml(path, older_schema=True)


def test_deep_json_is_refused(tmp_path: Path) -> None:
    """Before Python's own limit, or by it."""
    path = tmp_path / "arguments.json"
    for depth in (60, 100_000):
        path.write_text('{"a":' * depth + "1" + "}" * depth)
        with pytest.raises(ConfigurationError, match="nested"):
            read_json(path)
    path.write_text('{"a": 1' + "0" * 5000 + "}")
    with pytest.raises(ConfigurationError, match="Invalid JSON"):
        read_json(path)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    """Nor is a file beyond the limit, or one that is not UTF-8."""
    os.mkfifo(tmp_path / "recipe.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    (tmp_path / "long.yaml").write_bytes(b"#" * (1 << 20) + b"\na: 1")
    for name in ("recipe.yaml", "latin.yaml", "long.yaml"):
        with pytest.raises(ConfigurationError, match=name):
            read_yaml(tmp_path / name)


def test_limits_can_be_raised(tmp_path: Path) -> None:
    """A deep file is read within raised limits; aliases within them are expanded."""
    path = tmp_path / "recipe.yaml"
    path.write_text("a: " + "[" * 60 + "]" * 60)
    with reading_limits(recipe_depth=70):
        assert read_yaml(path).values["a"]
    path.write_text("a: &a [1, 2]\nb: [*a, *a]\nc:\n  <<: {d: 1}")
    assert read_yaml(path).values == {"a": [1, 2], "b": [[1, 2], [1, 2]], "c": {"d": 1}}


@given(
    st.text(alphabet="ab:[]{}&*!?|>-'\"#, \n\t%@`<0123e.", max_size=60),
    st.sampled_from([CoreSchemaLoader, BoundedLoader]),
)
def test_any_text_is_read_or_refused(text: str, loader: type[BoundedLoader]) -> None:
    """No other error is raised."""
    try:
        reader, node = compose(text, loader)
        if node is not None:
            construct(reader, node)
    except InvalidYAMLError as error:
        assert "\n" not in str(error)  # noqa: PT017 - most texts are read
