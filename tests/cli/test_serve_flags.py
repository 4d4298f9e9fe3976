"""Options about traffic: their bounds and their effect."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.server.flags import MAX_QUEUE_TOKENS, MAX_SECONDS, add_traffic_flags, traffic_options
from headrace.errors import ConfigError

KEY = "sk-0123456789abcdef"


def options(*words: str, environment: str | None = None) -> Any:
    parser = argparse.ArgumentParser()
    add_traffic_flags(parser)
    return traffic_options(parser.parse_args(words), environment)


@pytest.mark.parametrize(
    ("flag", "least", "most"),
    [
        ("--max-queue", 1, 1_000_000), ("--max-queue-tokens", 1, MAX_QUEUE_TOKENS),
        ("--queue-timeout", 0, MAX_SECONDS), ("--request-timeout", 0, MAX_SECONDS),
    ],
)  # fmt: skip
def test_bounds(flag: str, least: int, most: int) -> None:
    for value in (least, most):
        options(flag, str(value))
    for value in (least - 1, most + 1):
        with pytest.raises(ConfigError, match=f"^{flag} must be between {least} and {most}, got "):
            options(flag, str(value))


@pytest.mark.parametrize("flag", ["--queue-timeout", "--request-timeout"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_no_time_is_no_number(flag: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} must be between"):
        options(flag, value)


def test_what_is_given_arrives(tmp_path: Path) -> None:
    found = options(
        "--max-queue", "5", "--max-queue-tokens", "600", "--queue-timeout", "1.5", "--request-timeout", "20",
        "--api-key", KEY, "--api-key", KEY + "2", "--share-prefix-across-keys", "--allowed-hosts", "a.example", "b",
        "--allowed-origins", "https://A.example", environment=KEY + "3",
    )  # fmt: skip
    assert (found.max_queue, found.max_queue_tokens) == (5, 600)
    assert (found.rules.queue_timeout_s, found.rules.request_timeout_s) == (1.5, 20.0)
    assert [key.caller.name for key in found.rules.keys.fixed] == ["key-1", "key-2", "environment"]
    assert found.rules.share_prefix and found.rules.keys.several
    assert found.hosts("127.0.0.1") == ("a.example", "b")
    assert found.allowed_origins == ("https://a.example",)
    assert KEY not in repr(found)


def test_nothing_given_asks_for_nothing() -> None:
    found = options()
    assert not found.rules.keys.any and not found.rules.share_prefix
    assert (found.max_queue, found.max_queue_tokens) == (2048, None)
    assert (found.rules.queue_timeout_s, found.rules.request_timeout_s) == (None, None)
    assert "127.0.0.1" in found.hosts("127.0.0.1") and "*" not in found.hosts("127.0.0.1")
    assert found.allowed_origins == ()


@pytest.mark.parametrize("words", [["--api-key", KEY, "--api-key", KEY], ["--api-key", "short"]])
def test_keys_that_cannot_be(words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        options(*words)
    assert words[-1] not in str(caught.value)
