"""gpt-oss as it is published: experts in MXFP4, the rows of gate and up in turn, one tensor for all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests import needs
from tests.conformance.test_families import CASES, Case, expected_logits, prompt
from tests.models.quantized.packers import mxfp4
from tests.models.quantized.test_models import error, load, logits

native = needs.native()

HIDDEN, WIDE, EXPERTS = 64, 96, 6


def publish(folder: Path) -> Any:
    """Write the folder; gives the model with the same weights as floats."""
    fields = {**CASES["gpt-oss"].fields, "hidden_size": HIDDEN, "intermediate_size": WIDE}
    case = Case("GptOss", fields)
    case.build(folder)
    draw = np.random.default_rng(3)
    tensors = load_file(folder / "model.safetensors")
    packed = {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors[name].shape
        parts, weights = mxfp4(experts * rows, columns, draw, "_blocks", "_scales")
        shape = (experts, rows, columns // 32)
        packed[f"{name}_blocks"] = parts["_blocks"].reshape(*shape, 16)
        packed[f"{name}_scales"] = parts["_scales"].reshape(shape)
        floats = torch.from_numpy(np.asarray(weights, dtype=np.float32)).reshape(experts, rows, columns)
        tensors[name] = floats.transpose(1, 2).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    transformers = needs.package("transformers")
    model = transformers.GptOssForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    others = {name: one for name, one in tensors.items() if f"{name}_blocks" not in packed}
    save_file({**others, **packed}, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    excluded = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    method = {"quant_method": "mxfp4", "modules_to_not_convert": excluded}
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": method}))
    return model


def test_published_experts_are_kept_as_codes(tmp_path: Path, open_decoder: Any, paged_run: Any) -> None:
    theirs = expected_logits(publish(tmp_path), prompt())
    assert float((paged_run(open_decoder(tmp_path)).step({0: prompt()})[0] - theirs).abs().max()) < 1e-4
    plan, _ = load(tmp_path)
    formats = plan.resolved.weight_formats
    assert {formats.of(f"0.{role}").name for role in ("experts_gate_up", "experts_down")} == {"mxfp4-a16"}
    assert formats.of("0.qkv").name == "f32"


def test_the_kernels_multiply_the_codes(tmp_path: Path) -> None:
    theirs = expected_logits(publish(tmp_path), prompt())
    assert error(logits(tmp_path, prompt(), quantization="a16"), theirs) < 1e-2
