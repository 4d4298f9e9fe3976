"""Trains heads for a model: text and hidden states in, a folder out."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from headrace.errors import ConfigError
from headrace.evaluation.documents import (
    LONGEST,
    Document,
    Encoder,
    Record,
    beginnings,
    given_documents,
    split,
)
from headrace.models.packed.folder import new_folder
from headrace.models.source import ModelSource
from headrace.models.spec import AttentionSpec, MLPSpec, ModelSpec
from headrace.plan.hardware import this_machine
from headrace.speculative.base_model import BaseModel, base_model, read_ends
from headrace.speculative.heads import FORMAT, SAMPLE_TENSOR, SECTION, EagleLayer
from headrace.speculative.training.data import Corpus, Model, predicted
from headrace.speculative.training.eagle import MEASURED, Eagle
from headrace.speculative.training.fit import FitOptions, Method, accuracies, fit, measure
from headrace.speculative.training.medusa import Medusa
from headrace.speculative.training.tree import best_tree

_LEAST_TOKENS = 1000
_TREE_WIDTH = 16
_ROUND = 64
"""Texts that the model writes at once."""
_WRITTEN = 300
"""Tokens that it writes at most of each."""


class Writer(Protocol):
    """The model that heads are trained for, as it runs."""

    @property
    def encoder(self) -> Encoder: ...

    def write(
        self, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], seed: int, most: int
    ) -> list[list[int]]:
        """The tokens that it writes after each prompt, at most so many."""
        ...

    def hidden_states(self, documents: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """[n, H] of each document, after the final norm."""
        ...


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """records: texts to train on as they are if `given`, else beginnings for the model to continue. tokens: how many to
    train on. temperature: of every other text that the model writes; the others are greedy. heads, blocks: of Medusa.
    """

    method: str
    records: Sequence[Record]
    given: bool
    tokens: int
    temperature: float
    heads: int
    blocks: int
    tree_nodes: int
    fit: FitOptions
    threads: int


@dataclass(frozen=True, slots=True)
class Trained:
    """accuracy: of each head, or depth, the shares of held-out tokens among its 1, 2, 3 and 5 likeliest. tree_tokens:
    what Medusa's tree is expected to add to a step."""

    tokens: int
    heldout_tokens: int
    accuracy: list[list[float]]
    tree_tokens: float | None
    parameters: int


Stage = Callable[[str, str], Callable[[int, int], None]]
"""Called with the title and the unit of a stage; gives what shows its progress."""


def train_heads(
    source: ModelSource,
    spec: ModelSpec,
    longest: int,
    writer: Writer,
    options: TrainOptions,
    folder: Path,
    stage: Stage,
) -> Trained:
    """Train, measure on held-out text, and write `folder`, which appears when it is complete.

    source: with weights, not a shape. longest: tokens of a sequence that the model takes. Raises ConfigError for a
    folder that is there already and for too little text, before anything is trained.
    """
    torch.set_num_threads(options.threads)
    base, ends = base_model(source, spec), read_ends(source, spec)
    size = 8 * (1 << 20) + (options.heads * options.blocks + 12) * 2 * spec.hidden_size**2
    with new_folder(folder, size) as fresh:
        rng = random.Random(options.fit.seed)
        documents = _documents(options, writer, rng, min(longest, LONGEST), stage)
        training, heldout = split(documents, rng)
        _check(training, heldout, spec, options)
        shown, read = stage("reading hidden states", "text"), 0
        corpora: list[Corpus] = []
        for part in (training, heldout):
            states: list[NDArray[np.float32]] = []
            for at in range(0, len(part), _ROUND):
                states += writer.hidden_states([one.ids for one in part[at : at + _ROUND]])
                shown(read + len(states), len(documents))
            read += len(states)
            corpora.append(Corpus(part, states))
        model, generator = Model(ends), torch.Generator().manual_seed(options.fit.seed)
        method: Method = (
            Medusa(model, options.heads, options.blocks)
            if options.method == "medusa"
            else Eagle(model, eagle_layer(spec), generator)
        )
        fit(method, corpora[0], options.fit, stage("training", "tok"))
        ranks = measure(method, corpora[1], options.fit.batch_tokens)
        return _save(fresh, method, base, ranks, corpora, options)


def _documents(
    options: TrainOptions, writer: Writer, rng: random.Random, longest: int, stage: Stage
) -> list[Document]:
    """Documents with about as many tokens as asked for."""
    if options.given:
        found, total = [], 0
        texts = given_documents(options.records, writer.encoder, longest)
        rng.shuffle(texts)
        for document in texts:
            if total >= options.tokens:
                break
            found.append(document)
            total += document.trained
        return found
    found, total, number = [], 0, 0
    shown = stage("writing text", "tok")
    while total < options.tokens:
        prompts = beginnings(options.records, writer.encoder, _ROUND, rng, longest - 1)
        if not prompts:
            raise ConfigError("there is no text: every record is empty, or longer than the model's context")
        temperatures = [options.temperature if i % 2 else 0.0 for i in range(len(prompts))]
        written = writer.write(prompts, temperatures, options.fit.seed * 1_000_003 + number, _WRITTEN)
        number += len(prompts)
        before = total
        for prompt, tokens in zip(prompts, written, strict=True):
            document = Document((*prompt, *tokens)[:longest], len(prompt))
            if document.trained > 1:
                found.append(document)
                total += document.trained
        if total == before:
            raise ConfigError("the model writes nothing after these texts: give others with --prompts")
        shown(min(total, options.tokens), options.tokens)
    return found


def _check(
    training: Sequence[Document], heldout: Sequence[Document], spec: ModelSpec, options: TrainOptions
) -> None:
    tokens = sum(one.trained for one in training)
    if tokens < _LEAST_TOKENS or not heldout:
        raise ConfigError(
            f"the text gives {tokens} tokens to train on, but {_LEAST_TOKENS} are needed: give more with --data "
            "or --tokens"
        )
    ahead, least = (options.heads + 1, 0) if options.method == "medusa" else (1, MEASURED - 1)
    if not all(any(predicted(one, ahead, least) for one in part) for part in (training, heldout)):
        fewer = ", or ask for fewer --heads" if options.method == "medusa" else ""
        raise ConfigError(
            f"the texts are too short: some need at least {ahead + least + 1} tokens; give longer ones{fewer}"
        )
    need = sum(len(one.ids) for one in (*training, *heldout)) * spec.hidden_size * 4
    if need > (room := this_machine().memory_available // 2):
        raise ConfigError(
            f"the hidden states of the text take {need / 1e9:.1f} GB, but {room / 1e9:.1f} GB are free for them: "
            "ask for fewer with --tokens"
        )


def eagle_layer(spec: ModelSpec) -> EagleLayer:
    """A layer as wide as the model's own; where those differ from each other, as the last one that attends."""
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)]
    dense = [layer.feed_forward for layer in spec.layers if isinstance(layer.feed_forward, MLPSpec)]
    inner = dense[-1].intermediate_size if dense else 3 * spec.hidden_size
    if not mixers:
        heads = max(1, spec.hidden_size // 64)
        return EagleLayer(spec.hidden_size, heads, heads, 64, inner, spec.norm.eps, 10_000.0)
    last = mixers[-1]
    theta = next((one.rope.theta for one in reversed(mixers) if one.rope is not None), 10_000.0)
    return EagleLayer(
        spec.hidden_size, last.num_heads, last.num_kv_heads, last.head_dim, inner, spec.norm.eps, theta
    )


def _save(
    folder: Path,
    method: Method,
    base: BaseModel,
    ranks: NDArray[np.int64],
    corpora: Sequence[Corpus],
    options: TrainOptions,
) -> Trained:
    """Write config.json and model.safetensors, in float16: rounding is far below what training leaves open."""
    tensors = {name: one.astype(np.float16) for name, one in method.tensors().items()}
    parameters = sum(one.size for one in tensors.values())
    if not all(np.isfinite(one).all() for one in tensors.values()):
        raise ConfigError(
            "training diverged, its weights are not numbers any more: try a smaller --learning-rate"
        )
    if base.sample is not None:
        tensors[SAMPLE_TENSOR] = base.sample.astype(np.float16)
    section: dict[str, Any] = {
        "format": FORMAT,
        "method": method.method,
        "model": base.name,
        "vocab_size": base.vocab_size,
        "hidden_size": base.hidden_size,
        **method.section(),
        "accuracy": accuracies(ranks),
    }
    gain = None
    if method.method == "medusa":
        paths, shares = best_tree(ranks, options.tree_nodes, min(_TREE_WIDTH, base.vocab_size))
        section |= {"tree": [list(path) for path in paths], "tree_shares": [round(one, 5) for one in shares]}
        gain = sum(shares)
    done = Trained(corpora[0].tokens, corpora[1].tokens, section["accuracy"], gain, parameters)
    section["training"] = {
        "text": "given" if options.given else "written by the model",
        "tokens": done.tokens, "heldout_tokens": done.heldout_tokens, "epochs": options.fit.epochs,
        "learning_rate": options.fit.rate, "seed": options.fit.seed,
    }  # fmt: skip
    (folder / "config.json").write_text(_pretty({SECTION: section}) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "np"})
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # it is for its owner alone
    return done


def _pretty(config: dict[str, Any]) -> str:
    """JSON with each list of numbers in one line."""
    lists: list[str] = []

    def held(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: held(one) for name, one in value.items()}
        if isinstance(value, list):
            lists.append(json.dumps(value))
            return f"@{len(lists) - 1}@"
        return value

    text = json.dumps(held(config), indent=2)
    for number, one in enumerate(lists):
        text = text.replace(f'"@{number}@"', one)
    return text
