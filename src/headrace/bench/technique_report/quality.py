"""What formats cost: each against the model as it is, on the bundled texts or given ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.bench.model.latency import Progress
from headrace.bench.quality.judged import JudgedLLM
from headrace.bench.report import Label, Row
from headrace.bench.technique_report.sections import SECTION
from headrace.config import EngineConfig
from headrace.evaluation.documents import Record, measured_documents
from headrace.evaluation.measures import divergence
from headrace.plan.ledger import ledger

TOKENS, QUICK_TOKENS = 6000, 1000
_LENGTH = 512
_FORMATS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("int8 weights", {"quantization": "int8"}),
    ("int4 weights", {"quantization": "int4"}),
    ("int8 KV cache", {"kv_cache_dtype": "int8"}),
    ("int8 weights and KV cache", {"quantization": "int8", "kv_cache_dtype": "int8"}),
)


def quality_rows(
    config: EngineConfig, records: Sequence[Record], tokens: int, progress: Progress
) -> Iterator[Row]:
    """A row for each format. The model must have a tokenizer and weights that were trained."""
    base: dict[str, Any] = dict(config.to_json())
    for name in ("quantization", "kv_cache_dtype", "speculative"):
        base.pop(name, None)
    model = base.pop("model")
    progress("the model as it is")
    reference = JudgedLLM(model, {**base, "show_progress": False})
    length = min(_LENGTH, reference.longest)
    documents = measured_documents(records, reference.llm.tokenizer, length, tokens)
    for name, options in _FORMATS:
        progress(f"quality of {name}")
        judged = JudgedLLM(model, {**base, **options, "show_progress": False})
        found = divergence(judged, reference, documents)
        parts = judged.llm.parts
        labels: dict[str, Label] = {SECTION: "quality", "format": name, "tokens": found.model.tokens}
        yield Row(
            labels,
            {
                "kl": found.mean,
                "perplexity": found.model.value,
                "perplexity_increase": found.perplexity_increase,
                "top_1": found.top_1,
                "weight_bytes": float(ledger(parts.spec, parts.resolved).weight_bytes),
            },
        )
