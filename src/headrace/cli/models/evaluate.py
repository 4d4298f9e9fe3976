"""`headrace eval`: how good a model is, by itself or beside another one."""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.engine_flags import add_engine_flags, engine_options
from headrace.cli.parser import add_command, add_number, check_range, check_writable
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.quality.judged import JudgedLLM
    from headrace.evaluation.documents import Document, Record
    from headrace.evaluation.measures import Agreement, Divergence

EXAMPLES = """\
examples:
  headrace eval perplexity tale
  headrace eval kl tale --quantization int4
  headrace eval kl ./my-model-Q4_K_M.gguf --reference ./my-model --data wiki.txt --tokens 50000
  headrace eval agreement tale --quantization int4 --json -

A line of a .jsonl file is {"text": …}, {"prompt": …}, {"prompt": …, "completion": …} or {"messages": […]}; any other
file is text, in paragraphs. Of a prompt and its completion only the latter is measured.
"""
_ANSWERS, _ANSWER_TOKENS = 16, 256
"""Of `compare`."""
MEASURES = ("perplexity", "kl", "agreement")
_PLAIN = (
    "quantization",
    "kv_cache_dtype",
    "speculative",
    "num_speculative_tokens",
    "speculative_quantization",
)
"""Options of the model that its reference does without, where that is the same model."""
_SHARED = ("num_threads", "max_model_len", "download_dir")
"""Options of the model that another one as its reference has too."""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "eval", "[options] {perplexity,kl,agreement} MODEL", examples=EXAMPLES,
        summary="perplexity of a model, or how far it is from another one",
        description="perplexity: of a text, in the model's own tokens. kl: how far the model's probabilities are from "
        "those of a reference, token by token, with both perplexities and how often the likeliest token is the same. "
        "agreement: how much of a greedy answer is the same. The reference is the same model as its checkpoint is, "
        "unless --reference names another.",
    )  # fmt: skip
    parser.add_argument(
        "measure", choices=MEASURES, metavar="{perplexity,kl,agreement}", help="what to measure"
    )
    parser.add_argument("model", metavar="MODEL", help="bundled name, folder, GGUF file or hub id")
    group = parser.add_argument_group("evaluation")
    group.add_argument(
        "--reference",
        metavar="MODEL",
        help="what to compare with; of the engine options it takes --num-threads, "
        "--max-model-len and --download-dir alone",
    )
    group.add_argument("--data", type=Path, metavar="FILE", help="texts (default: bundled stories)")
    add_number(group, "--tokens", 20_000, "tokens of text to measure on, at most")
    add_number(group, "--length", 1024, "longer texts are cut into pieces of so many tokens")
    add_number(group, "--answers", 32, "of agreement: how many")
    add_number(group, "--answer-tokens", 256, "of agreement: how long each is")
    group.add_argument("--json", metavar="PATH", help="write the result to this file, - for standard output")
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.bench.quality.judged import JudgedLLM
    from headrace.evaluation import measures
    from headrace.evaluation.documents import BUNDLED_TEXTS, read_records
    from headrace.models.source import SHAPE_PREFIX

    for name, high in (("tokens", 10**9), ("length", 10**6), ("answers", 10_000), ("answer_tokens", 100_000)):
        check_range(name.replace("_", "-"), getattr(args, name), 2 if name == "length" else 1, high)
    for model in (args.model, args.reference or ""):
        if model.startswith(SHAPE_PREFIX):
            raise ConfigError(f"{model} has random weights: there is nothing to measure")
    if args.measure == "perplexity" and args.reference is not None:
        raise ConfigError("perplexity is of one model: --reference is for kl and agreement")
    if args.json not in (None, "-"):
        check_writable("the result", args.json)
    path = BUNDLED_TEXTS if args.data is None else args.data
    records = read_records(path)
    options = engine_options(args)
    model = JudgedLLM(args.model, options)
    reference = None if args.measure == "perplexity" else _reference(args, options)
    if reference is not None and reference.vocab_size != model.vocab_size:
        raise ConfigError(
            f"{args.model} has {model.vocab_size} tokens and {reference.name} {reference.vocab_size}: both need one "
            "vocabulary"
        )
    with ProgressBar("measuring", "tok", scaled=True) as shown:
        if args.measure == "agreement":
            assert reference is not None
            prompts = _prompts(records, model, args.answers, args.answer_tokens)
            found: Any = measures.agreement(model, reference, prompts, args.answer_tokens)
        else:
            documents = _documents(records, model, args.length, args.tokens)
            if not documents:
                raise ConfigError(f"{path} holds no text to predict")
            found = (
                measures.perplexity(model, documents, shown)
                if reference is None
                else measures.divergence(model, reference, documents, shown)
            )
    _tell(args, found, None if reference is None else reference.name)
    return 0


def compare(
    model: str, reference: str, records: Sequence[Record], tokens: int, num_threads: int | None
) -> tuple[Divergence, Agreement]:
    """What a model lost beside the one that it was made from: on texts, and in greedy answers of 256 tokens."""
    from headrace.bench.quality.judged import JudgedLLM
    from headrace.evaluation.documents import LONGEST
    from headrace.evaluation.measures import agreement, divergence

    options: dict[str, Any] = {} if num_threads is None else {"num_threads": num_threads}
    one, other = JudgedLLM(model, options), JudgedLLM(reference, options)
    answer = min(_ANSWER_TOKENS, one.longest // 2, other.longest // 2)
    documents = _documents(records, one, LONGEST, tokens)
    if not documents:
        raise ConfigError("the texts to measure on hold nothing to predict")
    with ProgressBar("measuring", "tok", scaled=True) as shown:
        found = divergence(one, other, documents, shown)
    return found, agreement(one, other, _prompts(records, one, _ANSWERS, answer), answer)


def _reference(args: argparse.Namespace, options: Mapping[str, Any]) -> JudgedLLM:
    from headrace.bench.quality.judged import JudgedLLM

    if args.reference is not None:
        kept = {name: value for name, value in options.items() if name in _SHARED}
        return JudgedLLM(args.reference, kept)
    plain = {name: value for name, value in options.items() if name not in _PLAIN}
    if plain == options:
        raise ConfigError(
            f"{args.model} would be compared with itself: name another model with --reference, or an option such as "
            "--quantization int4"
        )
    return JudgedLLM(args.model, plain)


def _documents(records: Sequence[Record], model: JudgedLLM, length: int, tokens: int) -> list[Document]:
    from headrace.evaluation.documents import measured_documents

    return measured_documents(records, model.llm.tokenizer, min(length, model.longest), tokens)


def _prompts(records: Sequence[Record], model: JudgedLLM, count: int, tokens: int) -> list[list[int]]:
    from headrace.evaluation.documents import beginnings

    room = model.longest - tokens
    if room < 1:
        raise ConfigError(
            f"answers of {tokens} tokens leave no room for a prompt: {model.longest} fit in all, lower --answer-tokens"
        )
    prompts = beginnings(records, model.llm.tokenizer, count, random.Random(0), room)
    if not prompts:
        raise ConfigError("no text can be continued: all are empty or too long; give other texts")
    return prompts


def _tell(args: argparse.Namespace, found: Any, reference: str | None) -> None:
    if args.json is not None:
        text = json.dumps(
            {"measure": args.measure, "model": args.model, "reference": reference} | _plain(found), indent=2
        )
        if args.json == "-":
            print(text)
            return
        Path(args.json).write_text(text + "\n", encoding="utf-8")
    width = 34
    for name, value in _lines(args.measure, found):
        print(f"{name:<{width}}{value}")


def _plain(found: Any) -> dict[str, Any]:
    values = dataclasses.asdict(found)
    if "mean_nll" in values:
        values["perplexity"] = found.value
    if "p99" in values:
        for name in ("model", "reference"):
            values[f"{name}_perplexity"] = getattr(found, name).value
        values["perplexity_increase"] = found.perplexity_increase
        values = {
            "of_" + name if name in ("model", "reference") else name: value for name, value in values.items()
        }
    return values


def _lines(measure: str, found: Any) -> list[tuple[str, str]]:
    if measure == "perplexity":
        return [
            ("perplexity", f"{found.value:.4f}"),
            ("negative log-likelihood", f"{found.mean_nll:.4f} +- {found.error:.4f} a token"),
            ("tokens", f"{found.tokens:,}"),
        ]
    if measure == "agreement":
        return [
            ("answers that are the same", f"{found.equal:.1%} of {found.answers}"),
            ("the same from their beginning", f"{found.prefix:.1%} of {found.tokens} tokens"),
        ]
    return [
        (
            "perplexity",
            f"{found.model.value:.4f} ({found.perplexity_increase:+.2%} +- {found.increase_error:.2%})",
        ),
        ("perplexity of the reference", f"{found.reference.value:.4f}"),
        ("KL divergence, mean", f"{found.mean:.2e} +- {found.error:.0e} nats a token"),
        ("KL divergence, median, p99, most", f"{found.median:.2e}, {found.p99:.2e}, {found.most:.2e}"),
        ("the same likeliest token", f"{found.top_1:.2%}"),
        ("change of a token's probability", f"{found.probability_rms:.2%} (root mean square)"),
        ("tokens", f"{found.model.tokens:,}"),
    ]
