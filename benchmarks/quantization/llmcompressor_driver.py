"""Quantises a folder with llm-compressor; runs in llm-compressor's environment.

python -m benchmarks.quantization.llmcompressor_driver IN OUT METHOD GROUP TEXTS.json THREADS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from transformers import AutoModelForCausalLM


def recipe(method: str, group: int) -> Any:
    """4 bits, symmetric, all but the head."""
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": group}
    scheme = {
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    if method == "rtn":
        return QuantizationModifier(**scheme)
    if method == "awq":
        return [AWQModifier(), QuantizationModifier(**scheme)]
    return GPTQModifier(**scheme, actorder="static" if method == "gptq-ordered" else None)


def quantize(source: str, out: str, method: str, group: int, texts: list[list[int]]) -> None:
    """texts: token ids to calibrate on."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in texts]
    oneshot(
        model=model, dataset=Dataset.from_list(rows), recipe=recipe(method, group), output_dir=out,
        max_seq_length=max(map(len, texts)), num_calibration_samples=len(texts), shuffle_calibration_samples=False,
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[6]))
    quantize(
        sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), json.loads(Path(sys.argv[5]).read_text())
    )
