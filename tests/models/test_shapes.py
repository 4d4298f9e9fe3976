"""The well-known shapes have the sizes that they are known by."""

from __future__ import annotations

import pytest
import torch

from headrace.models.families import read_spec, weight_names
from headrace.models.loader import random_weights
from headrace.models.shapes import SHAPES
from headrace.program.lower import lower

# Parameters in millions, as stated by their makers' checkpoints.
MILLIONS = {
    "tinyllama-1.1b": 1100.0,
    "smollm2-135m": 134.5,
    "smollm2-360m": 361.8,
    "smollm2-1.7b": 1711.4,
    "llama-2-7b": 6738.4,
    "llama-2-13b": 13_015.9,
    "llama-3.1-8b": 8030.3,
    "llama-3.1-70b": 70_553.7,
    "llama-3.2-1b": 1235.8,
    "llama-3.2-3b": 3212.7,
    "mistral-7b": 7241.7,
    "qwen2.5-0.5b": 494.0,
    "qwen2.5-1.5b": 1543.7,
    "qwen2.5-7b": 7615.6,
    "qwen3-0.6b": 596.0,
    "qwen3-1.7b": 1720.6,
    "qwen3-4b": 4022.5,
    "qwen3-8b": 8190.7,
    "qwen3-14b": 14_768.3,
    "qwen3-32b": 32_762.1,
    "qwen3-30b-a3b": 30_532.1,
    "mixtral-8x7b": 46_702.8,
    "qwen2.5-3b": 3085.9,
    "qwen2.5-14b": 14_770.0,
    "qwen2.5-32b": 32_763.9,
    "qwen2.5-72b": 72_706.2,
    "llama-2-70b": 68_976.6,
    "llama-3.1-405b": 405_853.4,
    "mistral-nemo-12b": 12_247.8,
    "mistral-small-24b": 23_572.4,
    "smollm3-3b": 3075.1,
    "granite-3.3-8b": 8170.9,
    "seed-oss-36b": 36_151.1,
    "gemma-2-2b": 2614.3,
    "gemma-2-9b": 9241.7,
    "gemma-2-27b": 27_227.1,
    "gemma-3-1b": 999.9,
    "phi-3-mini": 3821.1,
    "phi-4": 14_659.5,
    "command-r7b": 8028.0,
    "glm-4-9b-0414": 9400.3,
    "starcoder2-3b": 3030.4,
    "pythia-1.4b": 1414.6,
    "gpt-oss-20b": 20_914.8,
    "gpt-oss-120b": 116_829.2,
    "llama-4-scout": 107_769.9,  # the text part alone, of these two
    "llama-4-maverick": 400_711.8,
    "glm-4.5": 352_797.8,  # without the layer that predicts a second token, as the next two
    "glm-4.5-air": 106_852.3,
    "qwen3-next-80b-a3b": 79_674.4,
    "qwen3.5-0.8b": 752.4,  # the text part alone, of these
    "qwen3.5-2b": 1881.8,
    "qwen3.5-4b": 4205.8,
    "qwen3.5-9b": 8953.8,
    "qwen3.5-27b": 26_896.0,
    "qwen3.5-35b-a3b": 34_660.6,
    "qwen3.5-122b-a10b": 122_111.5,
    "qwen3.5-397b-a17b": 396_346.4,
    "lfm2-350m": 354.5,
    "lfm2-700m": 742.5,
    "lfm2-1.2b": 1170.3,
    "lfm2-2.6b": 2569.3,
    "lfm2-8b-a1b": 8339.9,
    "gemma-2b": 2506.2,
    "gemma-7b": 8537.7,
    "internlm3-8b": 8804.2,
    "granite-4.0-micro": 3402.8,
    "phi-4-mini": 3836.0,
    "olmo-3-7b": 7298.0,
    "glm-4-9b": 9400.0,
    "bloom-560m": 559.2,
    "bloom-7b1": 7069.0,
    "mpt-7b": 6649.3,
    "qwen1.5-moe-a2.7b": 14_315.8,
    "gpt2": 124.4,
    "gpt2-xl": 1557.6,
}


@pytest.mark.parametrize("name", SHAPES)
def test_parameter_count(name: str) -> None:
    spec = read_spec(SHAPES[name])
    weights = lower(spec, weight_names(spec)).weights  # two norms of a layer may be one tensor
    count = sum({(weight.parts, weight.in_heads): weight.elements for weight in weights}.values())
    if name in MILLIONS:
        assert count / 1e6 == pytest.approx(MILLIONS[name], abs=0.06)


def test_random_weights_are_seeded_and_not_degenerate() -> None:
    spec = read_spec(SHAPES["tiny"])
    one, same, other = (random_weights(spec, dtype=torch.bfloat16, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.matrices["1.down"].weight, same.matrices["1.down"].weight)
    assert not torch.equal(one.tables["embed"], other.tables["embed"])
    assert not torch.equal(one.matrices["0.qkv"].weight, one.matrices["1.qkv"].weight)
    assert torch.equal(one.vectors["final_norm"], torch.ones(64, dtype=torch.bfloat16))
    for weight in (one.tables["embed"], one.matrices["0.gate_up"].weight):
        assert weight.dtype == torch.bfloat16
        assert float(weight.float().std()) == pytest.approx(0.02, rel=0.05)
