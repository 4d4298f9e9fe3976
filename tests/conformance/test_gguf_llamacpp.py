"""The bundled model as GGUF files of many types, in llama.cpp and here: the same distributions and the same text.

llama.cpp rounds activations to 8 bits where it multiplies with codes. Distributions differ by as much, and a greedy
text may go another way only where the two tokens are about as likely.
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


def divergence(expected: NDArray[np.float64], found: dict[int, Any]) -> float:
    """Kullback-Leibler divergence of the tokens that `found` names, and of all others together."""
    theirs = np.exp(expected[list(found)])
    ours = np.exp([one.logprob for one in found.values()])
    theirs, ours = (np.append(each, max(1 - each.sum(), 1e-12)) for each in (theirs, ours))
    return float((theirs * np.log(theirs / ours)).sum())


def check_greedy(theirs: Theirs, output: RequestOutput, tie: float) -> None:
    """Each token is llama.cpp's most likely one after the tokens before it, or within `tie` nats of that."""
    prompt, tokens = list(output.prompt_token_ids), list(output.outputs[0].token_ids)
    after = theirs.logprobs([*prompt, *tokens])[len(prompt) - 1 : -1]
    behind = after.max(axis=1) - after[np.arange(len(tokens)), tokens]
    assert behind.max() <= tie, (int(behind.argmax()), behind.max())


@pytest.mark.parametrize(
    ("kind", "quantization"),
    [(kind, None) for kind in (*TYPES, *MIXES)] + [(kind, "a8") for kind in (*TYPES[3:], *MIXES)],
)
def test_distributions_and_greedy_text(kind: str, quantization: str | None, tmp_path: Path) -> None:
    path = write(kind, tmp_path)
    theirs = Theirs(path)
    llm = LLM(
        str(path), tokenizer="tale", dtype="float32", quantization=quantization, max_logprobs=SHOWN, num_threads=1,
        show_progress=False,
    )  # fmt: skip
    (out,) = llm.generate([TEXT], SamplingParams(max_tokens=1, prompt_logprobs=SHOWN), use_tqdm=False)
    assert out.prompt_logprobs is not None
    ours = [entry for entry in out.prompt_logprobs if entry is not None]
    expected = theirs.logprobs(out.prompt_token_ids)[:-1]
    mean = np.mean([divergence(*pair) for pair in zip(expected, ours, strict=True)])
    assert mean < (1e-5 if kind in EXACT else 1e-3), mean
    for output in llm.generate(PROMPTS, SamplingParams(max_tokens=TOKENS, temperature=0.0), use_tqdm=False):
        check_greedy(theirs, output, 0.0 if kind in EXACT else TIE)
