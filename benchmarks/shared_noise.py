"""How often a draft model's token is the target model's, with noise that both share and with other draws.

    python -m benchmarks.shared_noise --temperatures 0.7 1.0

The target writes stories with Headrace. At each of their positions, both models' distributions are those that
transformers computes for the text so far, and three things are compared: both draw by Gumbel-max with the noise of
(seed, position, token), as Headrace does; both invert their distribution function at one shared uniform number; the
drafted token is tested by rejection sampling, whose acceptance is the sum of min(p, q). No way to draw both tokens
makes them equal more often than that.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace import LLM, SamplingParams
from headrace.bench.quality.perplexity import HELD_OUT, read_documents
from headrace.models.source import resolve_model
from headrace.runner.sampling.randomness import noise, uniforms

UNIFORM_STREAM = 9
PROMPT_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares of positions at which the draft's token is the target's."""

    shared_noise: float
    inverted: float
    bound: float
    positions: int


def agreement(
    target: NDArray[np.float32], draft: NDArray[np.float32], seed: int, temperature: float
) -> Agreement:
    """Of logits [N, V] of two models at output positions 0 to N - 1 of one sequence."""
    count, vocab_size = target.shape
    scaled = [logits.astype(np.float64) / temperature for logits in (target, draft)]
    every = noise([seed] * count, range(count), np.arange(vocab_size))
    winners = [(one + every).argmax(-1) for one in scaled]
    weights = [np.exp(one - one.max(-1, keepdims=True)) for one in scaled]
    p, q = (one / one.sum(-1, keepdims=True) for one in weights)
    uniform = uniforms([seed] * count, range(count), UNIFORM_STREAM)[:, None]
    inverted = [(one.cumsum(-1) <= uniform).sum(-1) for one in (p, q)]
    return Agreement(
        shared_noise=float((winners[0] == winners[1]).mean()),
        inverted=float((inverted[0] == inverted[1]).mean()),
        bound=float(np.minimum(p, q).sum(-1).mean()),
        positions=count,
    )


def measure(target: str, draft: str, temperature: float, stories: int, length: int) -> Agreement:
    """Mean agreement over the positions of `stories` texts that the target writes."""
    import torch  # only here, so that a test of `agreement` starts fast
    from transformers import AutoModelForCausalLM

    llm = LLM(target, seed=0)
    models = [
        AutoModelForCausalLM.from_pretrained(resolve_model(name).path, dtype=torch.float32)
        for name in (target, draft)
    ]
    prompts = [llm.tokenizer.encode(text)[:PROMPT_TOKENS] for text in read_documents(HELD_OUT)[:stories]]
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=length) for seed in range(len(prompts))
    ]
    found = []
    for seed, output in enumerate(llm.generate(prompts, params, use_tqdm=False)):
        written = output.outputs[0].token_ids
        ids = torch.tensor([[*prompts[seed], *written]])
        with torch.inference_mode():
            logits = [model(ids).logits[0, len(prompts[seed]) - 1 : -1].numpy() for model in models]
        found.append(agreement(logits[0], logits[1], seed, temperature))
    total = sum(one.positions for one in found)

    def mean(name: str) -> float:
        return float(sum(getattr(one, name) * one.positions for one in found) / total)

    return Agreement(mean("shared_noise"), mean("inverted"), mean("bound"), total)


def main(words: Sequence[str] | None = None) -> None:
    """Print a row for each temperature."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="tale")
    parser.add_argument("--draft", default="tale-draft")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.7, 1.0])
    parser.add_argument("--stories", type=int, default=40, help="texts that the target writes")
    parser.add_argument("--length", type=int, default=150, help="tokens of each, at most")
    args = parser.parse_args(words)
    print("| temperature | positions | shared noise | inverted distribution | bound |")
    print("|---|---|---|---|---|")
    for temperature in args.temperatures:
        got = measure(args.target, args.draft, temperature, args.stories, args.length)
        print(
            f"| {temperature} | {got.positions} | {got.shared_noise:.3f} | {got.inverted:.3f} | {got.bound:.3f} |"
        )


if __name__ == "__main__":
    main()
