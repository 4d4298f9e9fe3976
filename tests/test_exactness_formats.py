"""Models that `headrace quantize` wrote, in each of its forms: a request's tokens do not depend on what else happens.

As in test_exactness.py: each request alone and all together, with NaN in every block that holds nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.models.source import resolve_model
from headrace.models.stored import stored_spec
from headrace.quantize.gguf.run import GGUFOptions, quantize_gguf
from headrace.quantize.options import QuantizeOptions, Width
from headrace.quantize.run import quantize
from tests import tiny_checkpoint
from tests.places import TALE
from tests.test_exactness import CASES, alone, requests_for, run

SIZES = {
    "hidden_size": 256, "intermediate_size": 256, "num_key_value_heads": 4, "num_hidden_layers": 2,
    "sliding_window": None,
}  # fmt: skip
"""Whole blocks of 128 x 128 and rows of 256, and no window."""

FORMS: dict[str, dict[str, Any]] = {
    "awq": {"method": "awq", "format": "awq", "group": 32},
    "gptq, 3 bits, ordered": {"method": "gptq", "bits": 3, "group": 32, "format": "gptq", "order": "group"},
    "pack-quantized, asymmetric": {"method": "gptq", "group": 32, "symmetric": False},
    "pack-quantized, mixed": {
        "method": "gptq", "group": 32, "order": "static",
        "widths": (("0.qkv", Width(2, 32)), ("0.gate_up", Width(3, 64)), ("1.down", Width(8, 128))),
    },
    "int-quantized": {"method": "smoothquant", "bits": 8, "group": None},
    "float-quantized": {"method": "fp8", "bits": 8, "group": None, "strategy": "tensor", "static": True},
    "float-quantized, weights": {"method": "fp8", "bits": 8, "group": None, "clip": True},
    "blocks of floats": {"method": "fp8", "bits": 8, "group": None, "strategy": "block", "format": "fp8"},
    "rotated": {"method": "awq", "group": 32, "symmetric": False, "rotate": True},
    "head": {"method": "rtn", "bits": 8, "group": 64, "head": True},
}  # fmt: skip
GGUF_TYPES = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q4_K_M",
)  # fmt: skip
USUAL = ("int-quantized",)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The folder of a form."""
    folder = tmp_path_factory.mktemp("forms")
    known: dict[str, Path] = {}

    def of(form: str) -> str:
        if not known:
            (folder / "model").mkdir()
            tiny_checkpoint.write(folder / "model", tiny_checkpoint.CONFIGS["mistral"] | SIZES)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(TALE / name, folder / "model")
        if form not in known:
            source = resolve_model(str(folder / "model"))
            texts = [one.prompt for one in requests_for(4, seed=1)]
            known[form] = folder / str(len(known))
            spec, out = stored_spec(source), known[form]
            if form in FORMS:
                quantize(source, spec, QuantizeOptions(**FORMS[form]), texts, out, num_threads=1)
            else:
                quantize_gguf(source, spec, GGUFOptions(form), texts, out, num_threads=1)
                known[form] = next(out.glob("*.gguf"))
        return str(known[form])

    return of


@pytest.mark.parametrize(
    ("form", "case"),
    [
        pytest.param(form, case, marks=() if case == "everything" and form in USUAL else pytest.mark.long)
        for form in (*FORMS, *GGUF_TYPES)
        for case in CASES
    ],
)
def test_no_token_differs(form: str, case: str, written: Callable[[str], str]) -> None:
    options, happened = CASES[case]
    seen = run({"model": written(form), **options}, requests_for())
    assert happened(seen), seen
    # Keys of a block of fewer than 16 tokens are summed by themselves: such sizes have bits of their own.
    single = {"model": written(form), "block_size": options["block_size"]}
    assert seen.tokens == alone(single, requests_for())
