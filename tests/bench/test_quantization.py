"""Methods and bits side by side: what a variant means, and the line of the best ones."""

from __future__ import annotations

import pytest

from headrace.bench.quality.quantization import VARIANTS, best_of, command_words
from headrace.errors import ConfigError


def test_variants_are_options_of_the_command() -> None:
    assert command_words("gptq") == ["--method", "gptq"]
    assert command_words("gptq:3:32") == ["--method", "gptq", "--bits", "3", "--group-size", "32"]
    assert command_words("gguf:Q4_K_M:rtn") == ["--format", "gguf:Q4_K_M", "--method", "rtn"]
    assert command_words("auto:4.25") == ["--method", "auto", "--bits-per-weight", "4.25"]
    assert command_words("gguf:auto:4.5")[2:] == ["--format", "gguf:auto", "--bits-per-weight", "4.5"]
    assert len(VARIANTS) == 15
    assert all(command_words(one) for one in VARIANTS)
    for wrong in ("", "gguf", "auto", "gptq:4:32:x", "rtn:", "gguf:a:b:c"):
        with pytest.raises(ConfigError, match="is no variant"):
            command_words(wrong)


def test_the_line_joins_what_no_other_variant_beats() -> None:
    points = [(4.5, 0.001), (4.5, 0.002), (3.5, 0.01), (5.0, 0.0015), (8.0, 0.0001)]
    assert best_of(points) == [(3.5, 0.01), (4.5, 0.001), (8.0, 0.0001)]
