"""Trace files in the formats of Azure's and Mooncake's public traces; the lines here are made up."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.sim.simulate.requests import Ask
from headrace.sim.simulate.traces import MAX_LINE, UNORDERED, TraceAsks
from tests.sim.simulate.harness import VOCAB, simulation

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,374,44
2023-11-16 18:17:04.0319600,396,109
2023-11-16 18:17:04.0781500,12,0
2023-11-16 18:17:04.4799600,0,5
2023-11-16 18:17:05.9799600,91,16
"""
LATER_AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01.009930+00:00,2399,6
"""


def mooncake(*rows: tuple[float, int, int, list[int]]) -> str:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


def read(tmp_path: Path, text: str, **options: Any) -> list[Ask]:
    path = tmp_path / "trace"
    path.write_text(text)
    return list(TraceAsks(path, VOCAB, **options).first())


def test_azure(tmp_path: Path) -> None:
    asks = read(tmp_path, AZURE)
    assert [(len(ask.prompt), ask.output_tokens) for ask in asks] == [
        (374, 44),
        (396, 109),
        (12, 1),
        (91, 16),
    ]
    assert [ask.arrival_s for ask in asks] == pytest.approx([0.0, 0.052, 0.09819, 2.0], abs=1e-6)
    assert len({ask.prompt[:3] for ask in asks}) == 4


def test_azure_with_time_zones(tmp_path: Path) -> None:
    assert [ask.arrival_s for ask in read(tmp_path, LATER_AZURE, speed=4.0)] == pytest.approx([0.0, 0.25])


def test_times_without_a_zone_do_not_depend_on_the_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this zone 2:30 came twice in that night."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        lines = [f"2023-10-29 {hour:02}:30:00,9,7\n" for hour in range(1, 5)]
        asks = read(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(lines))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [ask.arrival_s for ask in asks] == [0.0, 3600.0, 7200.0, 10_800.0]


def test_other_columns_may_stand_between(tmp_path: Path) -> None:
    text = "id,GeneratedTokens,TIMESTAMP,ContextTokens\nx,7,2023-11-16 18:17:03,9\n"
    (ask,) = read(tmp_path, text)
    assert (len(ask.prompt), ask.output_tokens) == (9, 7)


def test_mooncake_prompts_share_what_their_hashes_share(tmp_path: Path) -> None:
    text = mooncake(
        (27_482, 1030, 52, [46, 47, 48]), (30_535, 1100, 26, [46, 47, 99]), (30_535, 700, 9, [7, 47])
    )
    one, two, three = read(tmp_path, text)
    assert [ask.arrival_s for ask in (one, two, three)] == pytest.approx([0.0, 3.053, 3.053])
    assert [len(ask.prompt) for ask in (one, two, three)] == [1030, 1100, 700]
    assert one.prompt[:1024] == two.prompt[:1024] and one.prompt[1024:1030] != two.prompt[1024:1030]
    assert three.prompt[:512] != one.prompt[:512] and three.prompt[512:] == one.prompt[512:700]


def test_a_prompt_may_be_longer_than_its_hashes(tmp_path: Path) -> None:
    one, two = read(tmp_path, mooncake((0, 520, 1, [3]), (0, 520, 1, [3])))
    assert len(one.prompt) == 520 and one.prompt[:512] == two.prompt[:512] and one.prompt != two.prompt


def test_the_engine_finds_shared_pieces(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(mooncake((0, 1100, 5, [1, 2, 3]), (2000, 1200, 5, [1, 2, 4]), (4000, 600, 5, [9, 8])))
    run = simulation(TraceAsks(path, VOCAB), blocks=600, max_model_len=2048, max_num_batched_tokens=512)
    run.run()
    assert run.tally.answered == 3 and run.tally.cached_tokens == 1024


def test_limits(tmp_path: Path) -> None:
    assert len(read(tmp_path, AZURE, count=2)) == 2
    assert len(read(tmp_path, AZURE, duration_s=0.06)) == 2


def test_times_that_a_clock_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 2 .* after the first request"):
        read(tmp_path, mooncake((0, 10, 1, []), (1e300, 10, 1, [])))


def test_neighbouring_lines_are_put_in_order(tmp_path: Path) -> None:
    asks = read(tmp_path, mooncake((5, 10, 1, []), (3, 11, 1, []), (4, 12, 1, [])))
    assert [len(ask.prompt) for ask in asks] == [11, 12, 10]
    rows = [(float(time), 10, 1, list[int]()) for time in range(2 * UNORDERED)]
    with pytest.raises(ConfigError, match=f"line {2 * UNORDERED + 1} .* sort the file"):
        read(tmp_path, mooncake(*rows, (1.0, 10, 1, [])))


def test_only_as_much_is_read_as_is_needed(tmp_path: Path) -> None:
    rows = [(float(time), 10, 1, list[int]()) for time in range(4 * UNORDERED)]
    asks = TraceAsks(_written(tmp_path, mooncake(*rows) + "{damaged\n"), VOCAB).first()
    assert [next(asks).arrival_s for _ in range(UNORDERED)][-1] == (UNORDERED - 1) / 1000


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no known format"),
        ("a,b\n1,2\n", "TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,-1,2\n", "-1 tokens: only 0 to"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,10000000,2\n",
            "line 2 .* has a length of 1",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,99999999999,2\n",
            "only 0 to 1,048,576",
        ),
        ('{"timestamp": 0, "input_length": 10000000, "output_length": 1}\n', "line 1 .* only 0 to 1,048,576"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03," + "9" * 200_000 + ",2\n", "line 2"),
        ("9" * 200_000 + "\n", "line 1"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,0,2\n", "no request"),
        ("{}\n", "line 1"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}\n', "line 1"),
        ('{"timestamp": 1, "input_length": 1.5, "output_length": 1}\n', "line 1"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}\n', "line 1"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 5}\n', "line 1"),
        ("{" + " " * MAX_LINE + "}\n", "longer than"),
    ],
)
def test_damaged_files_are_refused_before_the_simulation(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        TraceAsks(_written(tmp_path, text), VOCAB)


def test_a_pipe_is_refused() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"TIMESTAMP,ContextTokens,GeneratedTokens\n")
    os.close(writer)
    try:
        with pytest.raises(ConfigError, match="not a regular file: write it to one"):
            TraceAsks(Path(f"/dev/fd/{reader}"), VOCAB)
    finally:
        os.close(reader)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        TraceAsks(tmp_path / "none", VOCAB)
