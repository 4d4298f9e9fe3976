"""Key files: what they may hold, and that no refusal quotes a key."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.core.types import MAX_PRIORITY
from headrace.errors import ConfigError
from headrace.server.access.key_file import (
    MAX_FILE_BYTES,
    MAX_PER_MINUTE,
    KeySources,
    operator_keys,
    read_keys,
)
from headrace.server.access.keys import MAX_KEY_CHARS, MAX_KEYS, Caller, Key, KeyRing, digest_of

SECRET = "sk-most-secret-0123456789"
OTHER = "sk-another-one-9876543210"
TOML = f"""
[[keys]]
name = "ann"
key = "{SECRET}"
weight = 2
requests_per_minute = 60
tokens_per_minute = 10000
max_priority = "urgent"
admin = true

[[keys]]
name = "bob"
sha256 = "{hashlib.sha256(OTHER.encode()).hexdigest()}"
"""
ANN = {
    "name": "ann", "key": SECRET, "weight": 2, "requests_per_minute": 60, "tokens_per_minute": 10_000,
    "max_priority": -100, "admin": True,
}  # fmt: skip
BOB = {"name": "bob", "sha256": hashlib.sha256(OTHER.encode()).hexdigest()}
EXPECTED = (
    Key(digest_of(SECRET), Caller("ann", 2.0, -100, True, 60, 10_000)),
    Key(digest_of(OTHER), Caller("bob", 1.0, 0, False, None, None)),
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("keys.toml", TOML),
        ("keys.json", json.dumps([ANN, BOB])),
        ("keys.json", json.dumps({"keys": [ANN, BOB]}, indent=1)),
        ("keys.jsonl", f"{json.dumps(ANN)}\n\n{json.dumps(BOB)}\n"),
    ],
)
def test_forms(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert read_keys(path) == EXPECTED
    path.write_text(json.dumps(ANN))
    if name.endswith("l") and not name.endswith("toml"):
        assert read_keys(path) == EXPECTED[:1]


def refused(tmp_path: Path, entries: Any, name: str = "keys.json") -> str:
    path = tmp_path / name
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries))
    with pytest.raises(ConfigError) as caught:
        KeyRing(KeySources(file=path).load())
    message = str(caught.value)
    assert SECRET not in message and OTHER not in message and "\n" not in message
    causes = (caught.value.__cause__, None if caught.value.__suppress_context__ else caught.value.__context__)
    assert not any(
        cause is not None and SECRET in str(cause) for cause in causes
    )  # a traceback would show it
    return message


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": None}, "name"), ({"name": ""}, "name"), ({"name": "a b"}, "name"), ({"name": "x" * 65}, "name"),
        ({"name": 'x"}\nheadrace:evil 1'}, "name"), ({"key": "short"}, "8 to 1024 characters"),
        ({"key": SECRET + " "}, "visible ASCII"), ({"key": SECRET + "é"}, "visible ASCII"),
        ({"key": "x" * (MAX_KEY_CHARS + 1)}, "8 to 1024 characters"), ({"key": None}, "either key or sha256"),
        ({"sha256": "0" * 64}, "either key or sha256"), ({"weight": 0}, "weight"), ({"weight": 1001}, "weight"),
        ({"weight": float("nan")}, "weight"), ({"weight": True}, "weight"),
        ({"requests_per_minute": 0}, "requests_per"),
        ({"requests_per_minute": MAX_PER_MINUTE + 1}, "requests_per"), ({"tokens_per_minute": 1.5}, "tokens_per"),
        ({"tokens_per_minute": MAX_PER_MINUTE + 1}, "tokens_per"), ({"max_priority": "first"}, "urgent, normal"),
        ({"max_priority": MAX_PRIORITY + 1}, "max_priority"), ({"max_priority": -MAX_PRIORITY - 1}, "max_priority"),
        ({"admin": "yes"}, "admin"), ({"wieght": 2}, "no such field; known are name, key"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    message = refused(tmp_path, [BOB, ANN | change])
    assert "key 2: " in message and sentence in message


@pytest.mark.parametrize(
    ("entries", "name"),
    [
        ("", "keys.json"), ("{", "keys.json"), ("[]", "keys.json"), ("7", "keys.json"), ('{"keys": {}}', "keys.json"),
        (f'[{{"name": "ann", "key": "{SECRET}"', "keys.json"), (f'key = "{SECRET}', "keys.toml"), ("", "keys.toml"),
        (f'"{SECRET}"', "keys.json"), ("[" * 100_000, "keys.json"), (f"{SECRET}\n{OTHER}\n", "keys.json"),
        ([7], "keys.json"), ([[]], "keys.json"), ([SECRET], "keys.json"), (" " * (MAX_FILE_BYTES + 1), "keys.json"),
    ],
)  # fmt: skip
def test_files_that_hold_no_keys(tmp_path: Path, entries: Any, name: str) -> None:
    assert refused(tmp_path, entries, name).startswith("the key file ")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_keys(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="neither TOML nor JSON"):
        read_keys(tmp_path / "binary.json")


def test_duplicate_keys_are_refused(tmp_path: Path) -> None:
    assert "same name" in refused(tmp_path, [ANN, BOB | {"name": "ann"}])
    assert "same value" in refused(tmp_path, [ANN, ANN | {"name": "bob"}])


def test_the_number_of_keys_is_bounded(tmp_path: Path) -> None:
    def keys(count: int) -> list[Any]:
        return [{"name": f"k{n}", "key": f"sk-{n:020}"} for n in range(count)]

    path = tmp_path / "keys.json"
    path.write_text(json.dumps(keys(MAX_KEYS)))
    assert len(KeyRing(read_keys(path))) == MAX_KEYS
    assert f"at most {MAX_KEYS}" in refused(tmp_path, keys(MAX_KEYS + 1))


def test_keys_of_the_operator() -> None:
    keys = operator_keys([SECRET], OTHER)
    assert [key.caller.name for key in keys] == ["key-1", "environment"]
    assert all(key.caller.admin and key.caller.max_priority is None for key in keys)
    with pytest.raises(ConfigError, match="8 to 1024 characters"):
        operator_keys(["short"], None)
    assert operator_keys([], None) == () and operator_keys([], "") == ()
