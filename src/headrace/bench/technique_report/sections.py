"""The sections of the report: what each measures, in words, and which figures it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.bench.report import Report, Row

SECTION = "section"
"""The label that says which section a row belongs to."""


@dataclass(frozen=True, slots=True)
class Section:
    """`about`: paragraphs above the table. `columns`: metrics of it. `drawn`: it has a plot."""

    key: str
    title: str
    about: tuple[str, ...]
    columns: tuple[str, ...] = ()
    drawn: bool = True


_ALL = (
    Section(
        "techniques",
        "One technique at a time",
        (
            "The same requests served in several ways, each with one thing changed against the row that it names: "
            "chats after one system prompt (random tokens where a model has no chat template), with answers of "
            "long-tailed length, all in the queue within a fifth of the run. Every way has the same KV memory. The "
            "fastest of up to four runs counts.",
            "Predicted is what the cost model says for the steps that ran, those of a drafter included; formula is the "
            "plain roofline for the same steps, where no drafter runs. Neither is known where n-grams and a drafter "
            "take turns. The same answers: the share of requests with the same tokens as the row that it is compared "
            "with.",
        ),
        (
            "output_tokens_per_s", "gain", "predicted_tokens_per_s", "formula_tokens_per_s", "ttft_p50_s",
            "tpot_p50_s", "mean_batch", "kv_bytes", "weight_bytes", "same_answers", "cost_per_million",
        ),
    ),
    Section(
        "chunking",
        "Long prompts beside streams",
        (
            "Streams that decode while long prompts arrive. Whole prompts stop every stream for as long as they take; "
            "a prompt in chunks shares its steps with the streams. The gap between two tokens (ITL) shows it.",
        ),
        ("itl_p50_s", "itl_p99_s", "itl_most_s", "ttft_p50_s", "total_tokens_per_s"),
    ),
    Section(
        "batch",
        "Latency and speed by batch",
        (
            "Equal requests at once. Batch 1 is the baseline that guides start from: every step reads all weights for "
            "one token. More sequences share the same read, until arithmetic is the limit.",
        ),
        (
            "ttft_p50_s", "tpot_p50_s", "itl_p99_s", "decode_tokens_per_s", "predicted_tokens_per_s", "bytes_per_s",
            "operations_per_s", "fraction", "cost_per_million",
        ),
    ),
    Section(
        "prefill",
        "Reading prompts",
        ("One prompt at a time, by length. Many rows share each weight: arithmetic is the limit.",),
        (
            "prefill_tokens_per_s", "predicted_tokens_per_s", "bytes_per_s", "operations_per_s", "fraction",
        ),
        drawn=False,
    ),
    Section(
        "roofline",
        "The roofline",
        (
            "Each point is a step: operations a byte that it reads against operations a second. The slope is the "
            "memory's bandwidth, the ceiling the peak of the products, both measured in the same run.",
        ),
    ),
    Section(
        "attention",
        "Attention: tiled against materialised",
        (
            "One layer's attention over one prompt. Materialised, in numpy, keeps all scores: heads x tokens x tokens "
            "floats. Tiled, as the engine does it, keeps a tile of them. Peak memory is what the process grew by. "
            "Scores that need more than a quarter of the free memory are not computed: their size is the formula's.",
        ),
        ("seconds", "peak_bytes"),
    ),
    Section(
        "prefix",
        "Time to first token with and without a prefix hit",
        ("The same prompt twice: the second time its blocks are found in the prefix cache.",),
        ("ttft_p50_s", "speedup"),
    ),
    Section(
        "quality",
        "What fewer bits cost",
        (
            "Each format against the model as it is, on the same texts: the KL divergence of the next token's "
            "probabilities, the perplexity's increase, and how often the likeliest token is the same.",
        ),
        ("kl", "perplexity", "perplexity_increase", "top_1", "weight_bytes"),
    ),
    Section(
        "kv_memory",
        "KV memory of MHA, GQA, MQA and MLA",
        ("Computed from configs: bytes of keys and values in bfloat16, for one token and for whole sequences.",),
        ("token_bytes", "kv_4k_bytes", "kv_32k_bytes", "kv_128k_bytes"),
    ),
)  # fmt: skip
SECTIONS: Mapping[str, Section] = MappingProxyType({section.key: section for section in _ALL})
"""In the order of the page."""


def rows_of(report: Report, key: str) -> list[Row]:
    """The rows of a section, without its label."""
    return [
        Row({name: value for name, value in row.labels.items() if name != SECTION}, row.values, row.samples)
        for row in report.rows
        if row.labels.get(SECTION) == key
    ]
