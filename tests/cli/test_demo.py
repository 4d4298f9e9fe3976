"""`headrace demo`, which `make demo` runs: each row changes one thing, and the table shows its effect."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys

import pytest

from headrace.bench.baselines import BASELINES, BATCH, MAX_NUM_SEQS, compare, kv_token_bytes, served
from headrace.bench.workload import URGENT, shared_prompt_chats
from headrace.build import assemble
from headrace.config import EngineConfig
from tests import needs
from tests.places import ROOT

NAMES = (
    "no KV cache", "KV cache", "static batching", "continuous batching", "paged KV cache", "prefix caching",
    "priorities",
)  # fmt: skip
ROW = re.compile(r"^  (.+?) {2,}(\d+)(?: +([\d.]+) x)?  +(.+)$", re.MULTILINE)


def checked(printed: str) -> None:
    """The rows in their order, and ratios that follow from the rates."""
    rows = [match for match in ROW.findall(printed) if match[0] in NAMES]
    assert tuple(name for name, *_ in rows) == NAMES, printed
    rates = [int(rate) for _, rate, *_ in rows]
    assert rows[0][2] == ""
    for (_, _, ratio, _), rate, before in zip(rows[1:], rates[1:], rates, strict=False):
        assert float(ratio) == pytest.approx(rate / before, rel=0.05)
    hits = [int(rest.rpartition(" ")[2].rstrip("%")) for *_, rest in rows]
    assert hits[:5] == [0] * 5 and min(hits[5:]) > 50
    for baseline in BASELINES:
        assert f"  {baseline.name}  " in printed and baseline.change in printed


def test_the_command() -> None:
    needs.native()
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "demo", "--requests", "12", "--num-threads", "1"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\[\d+ tokens, .*\]\n", done.stderr)  # how the story came, and no progress bar
    assert "fox" in done.stdout and "12 chats after one system prompt" in done.stdout
    told = re.search(r"(\d+) tok/s instead of (\d+), ([\d.]+) x, the same story\.\n(\d+)% of", done.stdout)
    assert told is not None, done.stdout
    drafted, plain, ratio, right = map(float, told.groups())
    assert ratio == pytest.approx(drafted / plain, rel=0.02) and 50 < right <= 100
    checked(done.stdout)


@pytest.mark.long
def test_make_demo() -> None:
    """As a newcomer runs it, in this checkout."""
    done = subprocess.run(
        ["make", "demo", "ARGS=--requests 24"], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    checked(done.stdout)


def test_each_row_changes_one_thing() -> None:
    """The options of one technique, and nothing else, between a row and the next."""
    changed = [
        {
            name
            for name in before.options.keys() | row.options.keys()
            if before.options.get(name) != row.options.get(name)
        }
        for before, row in itertools.pairwise(BASELINES)
    ]
    batch = {"batch_size", "max_num_seqs"}
    assert changed == [
        {"kv_cache"}, batch, {"batching", "batch_size"}, {"kv_layout", "max_num_seqs"}, {"enable_prefix_caching"},
        {"scheduling_policy"},
    ]  # fmt: skip
    assert BASELINES[1].options["batching"] == BASELINES[2].options["batching"] == "static"


def test_the_workload_is_long_tailed_and_every_tenth_request_is_urgent() -> None:
    arrivals = shared_prompt_chats(1000, lambda messages: [1] * 120, rate_per_s=100)
    lengths = sorted(each.request.params.max_tokens or 0 for each in arrivals)
    assert lengths[500] <= 10 and 50 < lengths[900] < 100 and lengths[-1] == 380
    assert sum(each.request.priority == URGENT for each in arrivals) == 100
    assert arrivals == shared_prompt_chats(1000, lambda messages: [1] * 120, rate_per_s=100)
    assert [len(served(row, arrivals)) for row in BASELINES] == [31, 250] + [1000] * 5


@pytest.mark.long
def test_batches_are_as_large_as_their_rows_say() -> None:
    """By counts: a contiguous pool of eight sequences runs eight, and continuous batching keeps them busy."""
    arrivals = shared_prompt_chats(48, lambda messages: [5 + index for index in range(120)], rate_per_s=1e6)
    config = EngineConfig.from_kwargs(model="tale", **BASELINES[2].options)
    memory = BATCH * 512 * kv_token_bytes(assemble(config).resolved)
    rows = {
        row.baseline.name: row for row in compare("tale", arrivals, memory, lambda name: None, num_threads=1)
    }
    static, continuous, paged = (rows[name].measured for name in NAMES[2:5])
    largest = {name: max(len(step.shape) for step in row.measured.steps) for name, row in rows.items()}
    assert largest["KV cache"] == 1 and largest["static batching"] == largest["continuous batching"] == BATCH
    assert BATCH < largest["paged KV cache"] <= MAX_NUM_SEQS
    assert static.output_tokens == continuous.output_tokens == paged.output_tokens
    assert len(static.steps) > 1.5 * len(continuous.steps) > 1.5 * len(paged.steps)
    urgent = {name: rows[name].ttft_s(urgent=True) for name in NAMES[5:]}
    assert all(len(times) == 4 for times in urgent.values())
