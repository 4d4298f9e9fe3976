"""Folders that the methods' own packages wrote, against the logits that transformers computed from them.

tools/quantized_checkpoints.py made them; test_packages.py lets the packages write others, and runs those.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests import needs

needs.native()

from tests.models.quantized.test_models import error, load, logits  # noqa: E402

WRITTEN = Path(__file__).parent / "written"
Grid = Callable[[torch.Tensor], torch.Tensor]
"""Activations rounded to 8 bits, a scale for each token."""


def grid(steps: float) -> Grid:
    """So many steps from 0 to the largest of a token."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / steps
        return (x / scale).round().clamp(-128, 127) * scale

    return rounded


ROUNDED: dict[str, Grid] = {
    "bitsandbytes-int8": lambda x: grid(127)(x.half().float()),  # its products are in float16 as well
    "llm-compressor-w8a8": grid(127.5),
}
"""Folders whose own runs round activations to 8 bits, on another grid than Headrace's of 127 steps. In this tiny model,
rows of 32, rounding alone moves the logits by more than 1e-2, and what two grids do adds up; see
test_rounded_inputs_differ_by_their_grid_alone."""
FOLDERS = sorted(path.name for path in WRITTEN.iterdir())


def test_there_are_folders_of_every_package() -> None:
    assert {name.rpartition("-")[0] for name in FOLDERS} == {"auto-round", "bitsandbytes", "llm-compressor"}
    assert sum(path.stat().st_size for path in WRITTEN.rglob("model.safetensors")) < 100_000


@pytest.mark.parametrize("name", FOLDERS)
def test_transformers_and_headrace_agree(name: str) -> None:
    expected = load_file(WRITTEN / name / "expected.safetensors")
    plan, _ = load(WRITTEN / name)
    assert plan.spec.codes is not None and len(plan.spec.codes.formats) >= 5
    ours = logits(WRITTEN / name, expected["tokens"].tolist())
    assert error(ours, expected["logits"]) < (2e-2 if name in ROUNDED else 1e-2)


@pytest.mark.parametrize("name", sorted(ROUNDED))
def test_rounded_inputs_differ_by_their_grid_alone(name: str) -> None:
    """On its own grid a plain model with the weights that the codes mean gives the package's logits, and on a grid of
    127 steps Headrace's."""
    expected = load_file(WRITTEN / name / "expected.safetensors")
    tokens, theirs = expected["tokens"], expected["logits"]
    ours = logits(WRITTEN / name, tokens.tolist())
    model = plain_model(WRITTEN / name)
    floats = run(model, tokens, lambda x: x)
    assert error(ours, run(model, tokens, grid(127))) < 1e-5
    assert error(theirs.numpy(), run(model, tokens, ROUNDED[name])) < 5e-3
    assert error(theirs.numpy(), floats) > 1e-2 and error(ours, floats) > 1e-2
    assert error(logits(WRITTEN / name, tokens.tolist(), quantization="a16"), floats) < 5e-3


def plain_model(folder: Path) -> transformers.LlamaForCausalLM:
    """With the weights that the codes of a folder mean, in float32."""
    config = transformers.LlamaConfig.from_pretrained(folder, attn_implementation="eager")
    del config.quantization_config
    model = transformers.LlamaForCausalLM(config).float().eval()
    stored = load_file(folder / "model.safetensors")
    weights = {}
    for name, value in stored.items():
        rows = name.removesuffix("weight") + "SCB"  # of bitsandbytes: the largest weight of each row
        scale = stored[rows][:, None] / 127 if rows in stored else stored.get(f"{name}_scale", torch.ones(()))
        if name.endswith(".weight"):
            weights[name] = value.float() * scale.float()
    assert model.load_state_dict(weights, strict=False).missing_keys == ["lm_head.weight"]  # tied
    return model


def run(model: transformers.LlamaForCausalLM, tokens: torch.Tensor, rounded: Grid) -> torch.Tensor:
    """Logits [T, V] with the inputs of every matrix of the layer on a grid."""
    hooks = [
        module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0]),))
        for name, module in model.named_modules()
        if name.endswith("_proj")
    ]
    with torch.no_grad():
        found: torch.Tensor = model(tokens[None]).logits[0]
    for hook in hooks:
        hook.remove()
    return found
