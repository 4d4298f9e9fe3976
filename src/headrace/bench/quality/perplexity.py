"""Quality cost of a number format: the perplexity of a text, from the engine's log-probabilities."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from headrace.bench.report import Row
from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.errors import ConfigError
from headrace.llm import LLM
from headrace.models.source import BUNDLED_FOLDER
from headrace.plan.units import DTYPE_BYTES

HELD_OUT = BUNDLED_FOLDER / "heldout.jsonl"
"""Documents that the bundled models were not trained on."""

MAX_TEXT_BYTES = 256 << 20

_BATCH = (
    16  # documents given to the engine at once: their log-probabilities stay in memory until all are done
)


@dataclass(frozen=True, slots=True)
class Score:
    """`loss` is the sum of -log p over `tokens` predicted tokens, in nats."""

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss / self.tokens)


def read_documents(path: Path) -> list[str]:
    """The `text` of every line of a .jsonl file; any other file is one document of UTF-8 text.

    Raises ConfigError where the file cannot be read as that, is empty, or larger than MAX_TEXT_BYTES.
    """
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_TEXT_BYTES} bytes")
        content = path.read_text(encoding="utf-8")
        texts = (
            [content]
            if path.suffix != ".jsonl"
            else [json.loads(line)["text"] for line in content.split("\n") if line.strip()]
        )
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} does not hold a JSON object with a text on every line") from error
    if not all(isinstance(text, str) for text in texts) or not any(texts):
        raise ConfigError(f"{path} holds no text")
    return [text for text in texts if text]


def score(llm: LLM, texts: Sequence[str], on_done: Callable[[int], None] = lambda count: None) -> Score:
    """Score every token of each text except the first, given the tokens before it.

    Texts longer than the engine's context are cut into independent pieces. `on_done` is called
    with the number of texts done. Raises ConfigError if there is no token to predict.
    """
    room = llm.parts.resolved.max_model_len - 1  # a request needs room for one token of output
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    loss, tokens = 0.0, 0
    for start in range(0, len(texts), _BATCH):
        pieces: list[list[int]] = []
        for text in texts[start : start + _BATCH]:
            ids = llm.tokenizer.encode(text)
            pieces += [ids[at : at + room] for at in range(0, len(ids), room)]
        for output in llm.generate([piece for piece in pieces if len(piece) > 1], params, use_tqdm=False):
            assert output.prompt_logprobs is not None
            for token, scored in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
                assert scored is not None
                loss -= scored[token].logprob
                tokens += 1
        on_done(min(start + _BATCH, len(texts)))
    if tokens == 0:
        raise ConfigError("the text is too short: there is no token to predict")
    return Score(loss, tokens)


def perplexity_rows(
    config: EngineConfig,
    texts: Sequence[str],
    *,
    weights: Sequence[str],
    kv: Sequence[str],
    progress: Callable[[str], None],
) -> Iterator[Row]:
    """A row for each weight format and KV type; the model is loaded again for each.

    weights: compute types, or formats as `quantization` takes them; kv: as `kv_cache_dtype` takes them. `ratio` is
    the perplexity over that of the first row.
    """
    variants = [
        variant(config, one, other) for one in weights for other in kv
    ]  # all are checked before the first one runs
    first: float | None = None
    for one in variants:
        llm = LLM(show_progress=False, **cast("dict[str, Any]", one.to_json()))
        resolved = llm.parts.resolved
        name = resolved.quantization or resolved.dtype
        progress(f"{name}, KV {resolved.kv_cache_dtype}")
        found = score(llm, texts)
        first = first or found.perplexity
        yield Row(
            {"weights": name, "kv": resolved.kv_cache_dtype, "kernels": resolved.kernels or "torch"},
            {"perplexity": found.perplexity, "ratio": found.perplexity / first},
        )


def variant(config: EngineConfig, weights: str, kv: str) -> EngineConfig:
    """The same options with other weights, a compute type or a quantised format, and another KV type."""
    if weights in DTYPE_BYTES:
        return replace(config, dtype=weights, quantization=None, kv_cache_dtype=kv)
    return replace(config, quantization=weights, kv_cache_dtype=kv)
