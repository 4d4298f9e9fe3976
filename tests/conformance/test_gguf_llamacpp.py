"""The bundled model as GGUF files of many types, in llama.cpp and here: the same distributions and the same text.

Both round activations to 8 bits where they multiply with codes: llama.cpp 256 or 32 features with one scale, the
kernels here 32 or 16. Distributions differ by as much, and a greedy text may go another way only where the two tokens
are about as likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace import LLM, RequestOutput, SamplingParams
from tests import needs
from tests.gguf_files import write_gguf
from tests.places import TALE

pytestmark = pytest.mark.long

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
"""What the package gguf writes."""

MIXES = ("Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS")
"""Mixes of types that llama.cpp's own quantisation makes."""

EXACT = {"F32", "F16"}
"""Types with which llama.cpp rounds no activations, or hardly."""

TEXT = (
    "Once upon a time there was a little dog who wanted a drum. He asked his friend, the duck, for help. The duck said "
    "that drums are loud, and that they would need a big box."
)
PROMPTS = [
    "Once upon a time",
    "The little dog",
    "Anna and Tom went to the",
    "One day, a girl named Lily found a",
]
TOKENS = 64
SHOWN = 64  # log-probabilities a token
TIE = 0.2
"""Nats between tokens that are about as likely."""


def write(kind: str, folder: Path) -> Path:
    path = folder / f"tale-{kind}.gguf"
    if kind in TYPES:
        return write_gguf(TALE, path, kind)
    llama_cpp = needs.llama_cpp()
    floats = write_gguf(TALE, folder / "tale.gguf", "F32")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    assert llama_cpp.llama_model_quantize(str(floats).encode(), str(path).encode(), params) == 0
    return path


class Theirs:
    """llama.cpp with the file, its KV cache in float32."""

    def __init__(self, path: Path) -> None:
        f32 = 0
        self._model: Any = needs.llama_cpp().Llama(
            str(path), n_ctx=512, logits_all=True, n_threads=1, type_k=f32, type_v=f32, verbose=False
        )

    def logprobs(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """[tokens, vocabulary]: of what follows each token."""
        self._model.reset()
        self._model.eval(list(tokens))
        logits = np.array(self._model.scores[: len(tokens)], dtype=np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return result


def divergence(expected: NDArray[np.float64], found: Sequence[dict[int, float]]) -> float:
    """Mean Kullback-Leibler divergence of the tokens that each of `found` names, and of all others together."""
    each = []
    for row, entry in zip(expected, found, strict=True):
        theirs, ours = np.exp(row[list(entry)]), np.exp(list(entry.values()))
        theirs, ours = (np.append(some, max(1 - some.sum(), 1e-12)) for some in (theirs, ours))
        each.append((theirs * np.log(theirs / ours)).sum())
    return float(np.mean(each))


def generate(path: Path, **options: Any) -> tuple[Sequence[int], list[dict[int, float]], list[RequestOutput]]:
    """(tokens of TEXT, the most likely tokens after each of them, greedy answers to PROMPTS)."""
    llm = LLM(
        str(path), tokenizer="tale", dtype="float32", kv_cache_dtype="float32", max_logprobs=SHOWN, num_threads=1,
        show_progress=False, **options,
    )  # fmt: skip
    (out,) = llm.generate([TEXT], SamplingParams(max_tokens=1, prompt_logprobs=SHOWN), use_tqdm=False)
    assert out.prompt_logprobs is not None
    found = [{token: one.logprob for token, one in entry.items()} for entry in out.prompt_logprobs if entry]
    greedy = SamplingParams(max_tokens=TOKENS, temperature=0.0)
    return out.prompt_token_ids, found, llm.generate(PROMPTS, greedy, use_tqdm=False)


def check_greedy(theirs: Theirs, output: RequestOutput, tie: float) -> None:
    """Each token is llama.cpp's most likely one after the tokens before it, or within `tie` nats of that."""
    prompt, tokens = list(output.prompt_token_ids), list(output.outputs[0].token_ids)
    after = theirs.logprobs([*prompt, *tokens])[len(prompt) - 1 : -1]
    behind = after.max(axis=1) - after[np.arange(len(tokens)), tokens]
    assert behind.max() <= tie, (int(behind.argmax()), behind.max())


@pytest.mark.parametrize("kind", [*TYPES, *MIXES])
def test_distributions_and_greedy_text(kind: str, tmp_path: Path) -> None:
    path = write(kind, tmp_path)
    theirs = Theirs(path)
    tokens, ours, outputs = generate(path)
    expected = theirs.logprobs(tokens)[:-1]
    _, exact, _ = generate(
        path, ops_force="torch"
    )  # the file's weights, and activations that are not rounded
    own = divergence(expected, exact)
    assert divergence(expected, ours) < (1e-5 if kind in EXACT else max(1e-3, 1.5 * own))
    if kind not in EXACT:
        near = nearness(exact, ours)
        print(f"{kind}: from the exact weights {near:.1e}, llama.cpp {own:.1e}")
        assert own < 1e-3 and near < 5e-4
    for output in outputs:
        check_greedy(theirs, output, 0.0 if kind in EXACT else TIE)


def nearness(exact: Sequence[dict[int, float]], ours: Sequence[dict[int, float]]) -> float:
    """As `divergence`, of the tokens that both name."""
    each = []
    for one, other in zip(exact, ours, strict=True):
        shared = [token for token in one if token in other]
        p, q = (np.exp([entry[token] for token in shared]) for entry in (one, other))
        p, q = (np.append(some, max(1 - some.sum(), 1e-12)) for some in (p, q))
        each.append((p * np.log(p / q)).sum())
    return float(np.mean(each))
