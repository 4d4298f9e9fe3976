from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.plan.units import format_bytes, format_count, parse_bytes, round_up


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("7", 7), ("7b", 7), ("1kB", 1000), ("1KiB", 1024), ("1k", 1024), ("2MB", 2_000_000),
        ("2 MiB", 2 << 20), ("0.5GiB", 1 << 29), ("1.999999999kB", 1999), ("3tb", 3 * 10**12), ("1t", 1 << 40),
    ],
)  # fmt: skip
def test_parse(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "b",
        "GiB",
        "1 2",
        "1,5GB",
        "1.GB",
        ".5GB",
        "+1",
        "-1",
        "1e3",
        "inf",
        "nan",
        "1PB",
        "٣",
        "1" * 33,
    ],
)
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="as a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"), (10 << 10, "10.0 KiB"),
        ((1 << 20) - 1, "1.00 MiB"), (1 << 20, "1.00 MiB"), (300 << 20, "300 MiB"), (4 << 30, "4.00 GiB"),
        (5 << 50, "5120 TiB"), (-2048, "-2.00 KiB"),
    ],
)  # fmt: skip
def test_format(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(0, 2**50))
def test_format_reads_back_close(size: int) -> None:
    assert abs(parse_bytes(format_bytes(size)) - size) <= max(1, size // 99)


def test_count() -> None:
    assert format_count(1100048384) == "1,100,048,384"


@pytest.mark.parametrize(
    ("value", "digits", "rounded"),
    [
        (0.0, 3, 0.0), (-1.0, 2, 0.0), (0.07, 3, 0.07), (0.0271234, 2, 0.028), (0.0271234, 3, 0.0272), (1.0, 2, 1.0),
        (99.91, 3, 100.0), (1234.5, 2, 1300.0),
    ],
)  # fmt: skip
def test_round_up(value: float, digits: int, rounded: float) -> None:
    assert round_up(value, digits) == rounded


@given(st.floats(1e-9, 1e9), st.integers(1, 6))
def test_what_is_rounded_up_is_not_less(value: float, digits: int) -> None:
    assert value * (1 - 1e-8) <= round_up(value, digits) <= value * (1 + 1.01 * 10.0 ** (1 - digits))
