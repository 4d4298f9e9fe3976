"""`headrace serve` says what the model will take before it loads it, and refuses what does not fit."""

from __future__ import annotations

import re

import pytest

from headrace.cli import main
from tests.server.conftest import ServeProcess


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["shape:llama-3.1-8b", "--dtype", "float32", "--max-model-len", "131072", "--kv-cache-memory", "900GB"],
         r"(the weights need .* memory|weights of .* leave .*|kv_cache_memory is 838 GiB, but .* is free)"),
        (["tale", "--kv-cache-memory", "900GB"], r"kv_cache_memory is 838 GiB, but .* lower --kv-cache-memory"),
        (["tale", "--max-model-len", "1000", "--kv-cache-memory", "1MB"],
         r"a sequence of 1000 tokens needs .* of KV cache, but .* lower --max-model-len to \d+"),
        (["tale", "--max-model-len", "100000"], r"max_model_len 100000 is longer than the model's context"),
        (["tale", "--num-kv-blocks", "2000000000"], r"num_kv_blocks 2000000000 does not fit: .* lower --num-kv-blocks"),
        (["tale", "--max-num-seqs", "64", "--max-num-batched-tokens", "8"], r"max_num_seqs 64 is greater than"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_loading(
    arguments: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is printed before, as it is when a server begins to load."""
    assert main(["serve", *arguments, "--port", "0"]) == 1
    said = capfd.readouterr()
    assert said.err.count("\n") == 1 and said.out == ""
    assert re.match(sentence, said.err.removeprefix("headrace: error: ")), said.err


def test_the_ledger_in_a_sentence(tale: ServeProcess) -> None:
    line = next(line for line in tale.said.splitlines() if "loading" in line)
    assert re.fullmatch(
        r"headrace: loading tale: [\d.]+ MiB of weights, [\d.]+ [MG]iB of KV cache for [\d,]+ tokens, [\d.]+ MiB of "
        r"activations; up to 64 sequences of up to 1,024 tokens at once",
        line,
    )
