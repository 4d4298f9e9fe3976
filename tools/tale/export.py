"""Writes a checkpoint and the tokenizer as a Hugging Face model folder."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from tools.tale.corpus import CHAT_TEMPLATE
from tools.tale.model import SHAPES, Llama
from tools.tale.words import SPECIALS

CARD = """---
license: apache-2.0
language: en
---
# {name}

A tiny Llama-architecture storyteller ({params:,} parameters), trained from scratch with
`tools/tale` on text that a grammar of our own generates. It tells short English stories, answers
questions about the story it just told, and knows nothing else.{role}

Chat form: `<|begin|>`, then `<|role|>text<|end|>` for each message (roles system, user,
assistant), then `<|assistant|>`. Plain stories: `<|begin|>Once upon a time`.

Trained on {trained}; context 1024 tokens.{loss}
"""


def dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def export(checkpoint: Path, tokenizer: Path, name: str, out: Path, loss: str) -> None:
    """Write config, weights (bfloat16), tokenizer, template and card."""
    out.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[name]
    state = torch.load(checkpoint, map_location="cpu")
    model = Llama(shape)
    model.load_state_dict(state["model"])
    weights = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(weights, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 5}
    dump(
        out / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **asdict(shape),
            **ids,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "rope_scaling": None,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
        },
    )
    dump(
        out / "generation_config.json",
        {
            **ids,
            "do_sample": True,
            "temperature": 0.7,
            "top_p": 0.95,
            "max_new_tokens": 512,
        },
    )
    (out / "tokenizer.json").write_text(tokenizer.read_text())
    dump(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin|>",
            "eos_token": "<|end|>",
            "pad_token": "<|pad|>",
            "additional_special_tokens": SPECIALS[2:5],
            "model_max_length": shape.max_position_embeddings,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    params = sum(p.numel() for p in model.parameters())
    trained = f"{state['seen']:,} tokens in {state['spent'] / 60:.0f} minutes on two CPU cores"
    if "before" in state:  # by distil.py
        seen, spent = state["before"]
        trained = (
            f"{seen:,} tokens of the corpus, then on {state['seen']:,} tokens of what `tale` writes, towards its "
            f"distributions, in {(spent + state['spent']) / 60:.0f} minutes of one CPU core"
        )
    role = " It drafts tokens for `tale`, whose tokenizer it shares." if name == "tale-draft" else ""
    (out / "README.md").write_text(
        CARD.format(
            name=name,
            params=params,
            role=role,
            trained=trained,
            loss=f" {loss}" if loss else "",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(SHAPES), default="tale")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--loss", default="", help="a sentence about the loss for the card")
    args = parser.parse_args()
    export(args.checkpoint, args.tokenizer, args.model, args.out, args.loss)


if __name__ == "__main__":
    main()
