"""Sources of keys: the command line, the environment, and a file that can be reloaded while the server runs."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from headrace.core.types import MAX_PRIORITY, MAX_WEIGHT, MIN_WEIGHT
from headrace.errors import ConfigError
from headrace.server.access.keys import Caller, Key, checked_key, digest_of

MAX_FILE_BYTES = 2**20
MAX_NAME_CHARS = 64
MAX_PER_MINUTE = 10**12

PRIORITIES = {"urgent": -100, "normal": 0, "background": 100}


def priority_number(value: object) -> object:
    """The number of a priority class given by name; anything else unchanged.

    Raises ValueError for an unknown name.
    """
    if not isinstance(value, str):
        return value
    if value not in PRIORITIES:
        raise ValueError(f"must be a whole number or one of {', '.join(PRIORITIES)}")
    return PRIORITIES[value]


PerMinute = Annotated[int, Field(ge=1, le=MAX_PER_MINUTE)]


class KeyEntry(BaseModel):
    """One key of the file, or its SHA-256 in hexadecimal digits, so that the file need not be secret."""

    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=rf"^[A-Za-z0-9][A-Za-z0-9._@-]{{0,{MAX_NAME_CHARS - 1}}}$")]
    key: str | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    weight: Annotated[float, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT)] = 1.0
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    max_priority: Annotated[
        int, BeforeValidator(priority_number), Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    ] = 0
    admin: bool = False

    @field_validator("key")
    @classmethod
    def _usable(cls, key: str | None) -> str | None:
        return None if key is None else checked_key(key)

    @model_validator(mode="after")
    def _one_of_two(self) -> KeyEntry:
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("give either key or sha256")
        return self

    @property
    def made(self) -> Key:
        digest = bytes.fromhex(self.sha256) if self.sha256 is not None else digest_of(self.key or "")
        return Key(digest, Caller(**self.model_dump(exclude={"key", "sha256"})))


@dataclass(frozen=True, slots=True)
class KeySources:
    """`fixed`: keys that cannot change while the server runs."""

    fixed: tuple[Key, ...] = ()
    file: Path | None = None

    @property
    def several(self) -> bool:
        """There may be several callers, now or after a reload."""
        return len(self.fixed) > 1 or self.file is not None

    @property
    def any(self) -> bool:
        """Callers need a key."""
        return bool(self.fixed) or self.file is not None

    def load(self) -> tuple[Key, ...]:
        """All current keys. Raises ConfigError for a malformed file, without quoting a key."""
        return self.fixed + (() if self.file is None else read_keys(self.file))


def operator_keys(given: Sequence[str], environment: str | None) -> tuple[Key, ...]:
    """Keys from the command line and the environment, with admin rights and no limits. Raises ConfigError."""
    named = [(f"key-{number}", key) for number, key in enumerate(given, 1)]
    if environment:
        named.append(("environment", environment))
    try:
        return tuple(
            Key(digest_of(checked_key(key)), Caller(name, max_priority=None, admin=True))
            for name, key in named
        )
    except ValueError as error:
        raise ConfigError(f"--api-key or HEADRACE_API_KEY: {error}") from error


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a TOML file ([[keys]] tables), a JSON list, or a file with a JSON object a line.

    Raises ConfigError in one sentence.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"the key file {path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        entries = _entries(data.decode(), path.suffix.lower() == ".toml")
    except (ValueError, RecursionError) as error:  # also of the parsers, and for a wrong encoding
        # Only the place: the parsers' messages quote the file, which holds secrets.
        line = getattr(error, "lineno", None)
        place = "" if line is None else f", line {line}"
        raise ConfigError(f"the key file {path} is neither TOML nor JSON{place}") from None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"the key file {path} must list at least one key")
    keys = []
    for number, entry in enumerate(entries, 1):
        try:
            keys.append(KeyEntry.model_validate(entry).made)
        except ValidationError as error:
            raise ConfigError(f"the key file {path}, key {number}: {_sentence(error)}") from None
    return tuple(keys)


def _entries(text: str, toml: bool) -> Any:
    if toml:
        return tomllib.loads(text).get("keys")
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [json.loads(line) for line in lines]
    if isinstance(value, dict):
        return value.get("keys", [value])
    return value


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    if first["type"] == "extra_forbidden":
        return f"there is no such field; known are {', '.join(KeyEntry.model_fields)}"
    field = next((str(part) for part in first["loc"]), "")
    text = first["msg"].removeprefix("Value error, ")
    return (
        f"{field}: {text[:1].lower()}{text[1:]}"
        if field in KeyEntry.model_fields
        else text[:1].lower() + text[1:]
    )
