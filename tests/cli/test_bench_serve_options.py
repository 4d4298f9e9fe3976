"""Options of `headrace bench serve`: every bound, and what does not go together, is one clear sentence."""

from __future__ import annotations

import pytest

from headrace.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--num-prompts", "0"], "--num-prompts must be at least 1"),
        (["--num-prompts", "1000001"], "--num-prompts must be between 1 and 1000000"),
        (["--num-warmups", "1000001"], "--num-warmups must be between 0 and 1000000"),
        (["--max-concurrency", "10001"], "--max-concurrency must be between 1 and 10000"),
        (["--burst-size", "1000001"], "--burst-size must be between 1 and 1000000"),
        (["--num-turns", "1001"], "--num-turns must be between 1 and 1000"),
        (["--num-prefixes", "1000001"], "--num-prefixes must be between 1 and 1000000"),
        (["--prefix-len", str(2**20 + 1)], "--prefix-len must be between 1 and 1048576"),
        (["--input-len", str(2**20 + 1)], "--input-len must be between 1 and 1048576"),
        (["--output-len", str(2**20 + 1)], "--output-len must be between 1 and 1048576"),
        (["--max-model-len", str(2**31 + 1)], "--max-model-len must be between 1 and 2147483648"),
        (["--seed", str(2**63 + 1)], "--seed must be between 0"),
        (["--burstiness", "0"], "--burstiness must be between 0.001"),
        (["--burstiness", "nan"], "--burstiness must be between 0.001"),
        (["--burstiness", "1000001"], "--burstiness must be between 0.001"),
        (["--max-concurrency", "2", "--duration", "86401"], "--duration must be between 0.001 and 86400"),
        (["--request-timeout", "86401"], "--request-timeout must be between 0.001 and 86400"),
        (["--duration", "5"], "--duration needs --max-concurrency"),
        (["--duration", "5", "--max-concurrency", "2", "--request-rate", "3"], "exclude each other"),
        (["--request-rate", "0"], "--request-rate must be between 1e-06"),
        (["--goodput", "ttft"], "--goodput takes ttft, tpot, e2el"),
        (["--goodput", "itl:1"], "--goodput takes ttft, tpot, e2el"),
        (["--goodput", "ttft:86401"], "--goodput takes ttft, tpot, e2el"),
        (["--extra-body", "[1]"], "--extra-body must be a JSON object"),
        (["--extra-body", "{"], "--extra-body must be a JSON object"),
        (["--base-url", "localhost:8000"], "--base-url must look like"),
        (["--base-url", "http://a..b:8000"], "--base-url must look like"),
        (["--base-url", "http://localhost:8000/a b"], "--base-url must look like"),
        (["--api-key", "a\nb"], "--api-key must be printable"),
    ],
)
def test_bad_options(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith("headrace: error: ") and said in error and error.count("\n") == 1
