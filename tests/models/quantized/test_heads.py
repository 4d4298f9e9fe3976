"""Matrices of heads, which one tensor holds, from a tensor that is stored as codes: DeepSeek V3 as published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from headrace import LLM, SamplingParams
from headrace.models.loader import load_weights
from headrace.models.source import resolve_model
from headrace.models.stored import stored_spec
from tests import needs
from tests.tiny_checkpoint import CONFIGS, weights

SIZE = 32  # of a block of weights that share a scale

FP8 = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [SIZE, SIZE],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same model with the matrices of heads as floats, and as codes."""
    config = CONFIGS["deepseek"]
    plain = {name: torch.from_numpy(tensor) for name, tensor in weights(config).items()}
    coded = dict(plain)
    for name in [name for name in plain if name.endswith(".kv_b_proj.weight")]:
        rows, columns = plain[name].shape
        scales = (
            torch.rand(-(-rows // SIZE), -(-columns // SIZE), generator=torch.Generator().manual_seed(1))
            + 0.5
        )
        wide = scales.repeat_interleave(SIZE, 0).repeat_interleave(SIZE, 1)[:rows, :columns]
        codes = (plain[name] / wide).to(torch.float8_e4m3fn)
        plain[name] = codes.float() * wide
        coded |= {name: codes, name.replace(".weight", ".weight_scale_inv"): scales}
    made = []
    for which, tensors, more in (("plain", plain, {}), ("coded", coded, {"quantization_config": FP8})):
        folder = tmp_path_factory.mktemp(which)
        (folder / "config.json").write_text(json.dumps({**config, **more}))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        made.append(folder)
    return made[0], made[1]


def test_torch_reads_their_floats(folders: tuple[Path, Path]) -> None:
    sources = [resolve_model(str(folder)) for folder in folders]
    plain, coded = (load_weights(one, stored_spec(one), dtype=torch.float32).matrices for one in sources)
    heads = [name for name, one in plain.items() if one.weight.dim() == 3 and "expert" not in name]
    assert heads
    for name in plain:
        assert torch.equal(plain[name].weight, coded[name].weight), name


def test_the_kernels_read_their_floats(folders: tuple[Path, Path]) -> None:
    needs.native()
    greedy = SamplingParams(max_tokens=8, temperature=0.0, logprobs=1, ignore_eos=True)

    def answer(folder: Path) -> Any:
        llm = LLM(str(folder), tokenizer="tale", dtype="float32", num_threads=1, show_progress=False)
        out = llm.generate([[3, 4, 5, 6]], greedy, use_tqdm=False)[0].outputs[0]
        return out.token_ids, out.logprobs

    plain, coded = (answer(folder) for folder in folders)
    assert plain == coded
