"""`headrace bench perplexity`: what number formats cost in quality."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from headrace.bench.latency import Progress
from headrace.bench.perplexity import HELD_OUT, perplexity_rows, read_documents, variant
from headrace.bench.report import Row
from headrace.cli.bench_kind import Flags, Kind, Prepared
from headrace.cli.engine_flags import engine_config


def _flags(parser: Flags) -> None:
    parser.add_argument(
        "--text", type=Path, default=HELD_OUT, metavar="PATH",
        help="a .jsonl file with a text a line, or plain text (default: text held out of the bundled models' training)",
    )  # fmt: skip
    parser.add_argument(
        "--weights", nargs="+", default=["float32", "bfloat16", "int8", "int4"], metavar="FORMAT",
        help="compute types, or formats as --quantization takes them (default: float32 bfloat16 int8 int4)",
    )  # fmt: skip
    parser.add_argument(
        "--kv", nargs="+", default=["auto"], metavar="TYPE",
        help="types of keys and values, as --kv-cache-dtype takes them (default: auto)",
    )  # fmt: skip


def _prepare(args: argparse.Namespace) -> Prepared:
    config = engine_config(args)
    texts = read_documents(args.text)
    for weights in args.weights:  # wrong names are told before the first model is loaded
        for kv in args.kv:
            variant(config, weights, kv)

    def rows(progress: Progress) -> Iterator[Row]:
        return perplexity_rows(config, texts, weights=args.weights, kv=args.kv, progress=progress)

    return Prepared(
        rows,
        len(args.weights) * len(args.kv),
        {**config.to_json(), "weights": args.weights, "kv": args.kv},
        head=[f"{args.model}: {len(texts)} texts of {args.text.name}"],
    )


QUALITY_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "perplexity": Kind(
            summary="perplexity of a text under several weight formats and KV types",
            description="Every token of the texts is predicted from those before it by the engine as it serves: "
            "batched, chunked, with the kernels and formats asked for. Perplexity is exp of the mean loss; the ratio "
            "is to the first row. Nothing is sampled, so that one run is enough.",
            examples=(
                "",
                " --weights bfloat16 int8 int4 int4-g32 int4-asym --kv auto int8",
                " -m ./my-model --text my.txt --weights bfloat16 int4",
            ),
            add_flags=_flags,
            prepare=_prepare,
            columns=("perplexity", "ratio"),
            repeats=1,
        ),
    }
)  # fmt: skip
