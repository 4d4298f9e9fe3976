"""A model that runs here, to be judged by its own probabilities and answers, or to write texts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.params import SamplingParams
from headrace.llm import LLM


class JudgedLLM:
    """An LLM as `evaluation.measures` and `quantize.calibration.texts` see it; satisfies `Judged` and `Writer`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.llm = LLM(name, **options)

    @property
    def vocab_size(self) -> int:
        return self.llm.parts.spec.vocab_size

    @property
    def longest(self) -> int:
        return self.llm.parts.resolved.max_model_len

    def states(self, documents: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        return self.llm.hidden_states([list(one) for one in documents], use_tqdm=False)

    def logits(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        return self.llm.logits(states)

    def write(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[tuple[int, ...]]:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        outputs = self.llm.generate([list(prompt) for prompt in prompts], params, use_tqdm=False)
        return [tuple(one.outputs[0].token_ids) for one in outputs]

    @property
    def begin(self) -> int | None:
        return self.llm.tokenizer.bos_id

    def sample(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], longest: int
    ) -> list[tuple[int, ...]]:
        params = [
            SamplingParams(temperature=1.0, seed=seed, max_tokens=longest - len(prompt))
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        outputs = self.llm.generate(
            [list(prompt) for prompt in prompts], params, use_tqdm=sys.stderr.isatty()
        )
        return [tuple(one.outputs[0].token_ids) for one in outputs]
