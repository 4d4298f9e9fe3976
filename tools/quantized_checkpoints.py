"""Writes the tiny checkpoints in tests/models/quantized/written with the methods' own packages.

    python tools/quantized_checkpoints.py llm-compressor | auto-round | bitsandbytes
    python tools/quantized_checkpoints.py record [FOLDER ...]

Each folder holds what the package saved for a Llama of 6,000 weights in its layer. `record` adds the file
`expected.safetensors`: token ids, and the logits that transformers computes for them from the same folder, in float32.
The packages are not dependencies of Headrace: install them, with transformers and accelerate, into environments of
their own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

WRITTEN = Path(__file__).resolve().parent.parent / "tests" / "models" / "quantized" / "written"
VOCAB, LENGTH = 16, 16
KEPT = ("config.json", "quantization_config.json", "quantize_config.json", "model.safetensors")


def tiny(hidden: int = 32) -> Any:
    """A seeded Llama of one layer."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=hidden, intermediate_size=hidden, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.15, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def tidy(folder: Path) -> None:
    """Keep only the files that matter."""
    for path in list(folder.rglob("*")):
        if path.name in KEPT and path.parent != folder:
            path.replace(folder / path.name)
    for path in folder.iterdir():
        if path.name not in KEPT:
            path.unlink() if path.is_file() else shutil.rmtree(path)


def record() -> None:
    """Record what transformers makes of every folder."""
    tokens = torch.randint(0, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(1))
    for folder in sorted(WRITTEN / name for name in sys.argv[2:]) or sorted(WRITTEN.iterdir()):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", device_map="cpu"
        ).eval()
        if not folder.name.startswith("bitsandbytes"):  # which cannot be cast, and was not in 16 bits
            torch.nn.Module.float(model)  # transformers refuses, because of methods that cannot
        with torch.no_grad():
            logits = model(tokens[None]).logits[0].float()
        save_file({"tokens": tokens, "logits": logits.contiguous()}, folder / "expected.safetensors")
        print(folder.name, sum(path.stat().st_size for path in folder.iterdir()), float(logits.norm()))


def llm_compressor() -> None:
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier

    ids = torch.randint(3, VOCAB, (16, 48), generator=torch.Generator().manual_seed(0)).tolist()
    data = Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * 48] * 16})

    def group(bits: int, **fields: Any) -> dict[str, Any]:
        weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 32, **fields}
        return {"group_0": {"targets": ["Linear"], "weights": weights}}

    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    rows_of_floats = {"group_0": {"targets": ["Linear"], "weights": weights}}
    recipes: dict[str, Any] = {
        "gptq": GPTQModifier(config_groups=group(4, symmetric=False, actorder="weight"), ignore=["lm_head"]),
        "w8a8": QuantizationModifier(targets="Linear", scheme="W8A8", ignore=["lm_head"]),
        "fp8": QuantizationModifier(config_groups=rows_of_floats, ignore=["lm_head"]),
    }
    for name, recipe in recipes.items():
        folder = WRITTEN / f"llm-compressor-{name}"
        tiny().save_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        oneshot(
            model=model,
            tokenizer=words(),
            dataset=data,
            recipe=recipe,
            max_seq_length=48,
            num_calibration_samples=16,
        )
        model.save_pretrained(folder, save_compressed=True)
        tidy(folder)


def words() -> Any:
    """A tokenizer, which AutoRound asks for but does not use without calibration."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    vocabulary = Tokenizer(WordLevel({f"w{token}": token for token in range(VOCAB)}, "w0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=vocabulary, unk_token="w0", eos_token="w2")


def auto_round() -> None:
    from auto_round import AutoRound

    cases: dict[str, dict[str, Any]] = {
        "gptq": {"bits": 4, "group_size": 32, "sym": False, "format": "auto_round:auto_gptq"},
        "awq": {"bits": 4, "group_size": 32, "sym": False, "format": "auto_round:auto_awq"},
    }
    if len(sys.argv) < 3:  # it keeps state in a process
        for name in cases:
            subprocess.run([sys.executable, __file__, "auto-round", name], check=True)
        return
    name = sys.argv[2]
    format, folder = cases[name].pop("format"), WRITTEN / f"auto-round-{name}"
    rounder = AutoRound(
        tiny(), tokenizer=words(), iters=0, disable_opt_rtn=True, device_map="cpu", **cases[name]
    )
    rounder.quantize_and_save(str(folder), format=format)
    tidy(folder)


def bitsandbytes() -> None:
    for name, options in {
        "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
                "bnb_4bit_compute_dtype": torch.float32},
        "int8": {"load_in_8bit": True},
    }.items():  # fmt: skip
        folder = WRITTEN / f"bitsandbytes-{name}"
        tiny(64 if name == "nf4" else 32).save_pretrained(
            folder
        )  # whole blocks of 64 in a row, for its CPU kernel
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            quantization_config=transformers.BitsAndBytesConfig(**options),
            device_map="cpu",
        )
        model.save_pretrained(folder)
        tidy(folder)


PACKAGES: dict[str, Callable[[], None]] = {
    "llm-compressor": llm_compressor, "auto-round": auto_round, "bitsandbytes": bitsandbytes, "record": record,
}  # fmt: skip

if __name__ == "__main__":
    WRITTEN.mkdir(exist_ok=True)
    PACKAGES[sys.argv[1]]()
