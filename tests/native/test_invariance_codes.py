"""The exactness matrix for weights that are stored as codes: by every format of the option, by checkpoints, and by
GGUF files.

As in test_invariance.py, no logprob may depend on what else happens. Weights of the checkpoints are random codes.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import needs

needs.native()

from headrace.models.source import resolve_model  # noqa: E402
from headrace.quant.block_formats import BLOCK_FORMATS  # noqa: E402
from tests.gguf_files import write_gguf  # noqa: E402
from tests.instruction_sets import BEST, SETS, parameters  # noqa: E402
from tests.models.quantized.models import quantize  # noqa: E402
from tests.models.quantized.packers import CASES as METHODS  # noqa: E402
from tests.native.test_invariance import CASES, requests  # noqa: E402
from tests.places import TALE  # noqa: E402
from tests.test_exactness import run  # noqa: E402

STORED = [
    "gptq-2", "gptq-3-asym", "gptq-4-act-order", "gptq-8-asym", "gptq-4-f32-scales", "awq-gemm", "ct-int5",
    "ct-int6-dense", "ct-mxfp4", "fp8-e8m0", "fp8-small-blocks", "fp8-e5m2", "bnb-nf4", "bnb-fp4", "bnb-int8",
]  # fmt: skip


class Nothing:
    """In place of a model that takes the weights that the codes mean."""

    def state_dict(self) -> Any:
        return self

    def __getitem__(self, name: str) -> Any:
        return self

    def copy_(self, weights: Any) -> None:
        pass


def check(model: str, kernels: str, **options: object) -> None:
    """Requests alone, on one thread and in one piece, against all of them in a crowded engine."""
    crowded, happened = CASES["everything"]
    settings = {"model": model, "dtype": "bfloat16", "ops_force": kernels, **options}
    alone: dict[str, object] = {
        "num_threads": 1, "max_num_seqs": 1, "max_num_batched_tokens": 2048, "enable_prefix_caching": False,
        "block_size": crowded["block_size"],
    }  # fmt: skip
    expected = run({**alone, **settings}, requests(), in_turn=True)
    assert expected.largest_batch == 1
    seen = run({**crowded, **settings, "num_threads": 2}, requests())
    assert happened(seen), seen
    assert all(len(found) == 30 for found in expected.logprobs.values())
    assert seen.logprobs == expected.logprobs


@pytest.mark.parametrize("name", ["nf4", "fp8", "mxfp4", "mxfp4-a16"])
def test_weights_rounded_to_tables(name: str) -> None:
    check("tale-draft", BEST, quantization=name)


@pytest.mark.long
@pytest.mark.parametrize("kernels", parameters(SETS))
@pytest.mark.parametrize("method", STORED)
def test_codes_of_a_checkpoint(method: str, kernels: str, tmp_path: Path) -> None:
    source = resolve_model("tale-draft")
    assert source.path is not None
    folder = Path(shutil.copytree(source.path, tmp_path / "model"))
    quantize(folder, Nothing(), METHODS[method])
    for activations in ("a16", "a8"):
        check(str(folder), kernels, quantization=activations)


def check_blocks(kind: str, kernels: str, folder: Path) -> None:
    """A file of one type but for v and the embeddings, so that q and k, and v, are matrices of their own."""
    other = "Q5_0" if kind == "Q6_K" else "Q6_K"
    path = write_gguf(
        TALE, folder / "m.gguf", lambda name: other if "attn_v" in name or "embd" in name else kind
    )
    check(str(path), kernels, tokenizer="tale")


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0"])
def test_blocks_of_a_gguf_file(kind: str, tmp_path: Path) -> None:
    check_blocks(kind, BEST, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kernels", parameters(SETS))
@pytest.mark.parametrize("kind", [name.upper() for name in BLOCK_FORMATS])
def test_blocks_of_every_type(kind: str, kernels: str, tmp_path: Path) -> None:
    check_blocks(kind, kernels, tmp_path)
