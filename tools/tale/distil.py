"""Trains `tale-draft` towards `tale`: first on the corpus, then on what `tale` itself writes.

`corpus` encodes documents. `write` lets the teacher answer requests of the corpus and stores, for each token of its
answers, the likeliest tokens with their probabilities. `train` reads one of the two: without probabilities it minimises
the cross-entropy of the documents, with them the divergence KL(teacher || draft). `answers` makes of what was written
the lines that `headrace train-heads` reads.

A budget is a number of tokens, not of minutes, so that a busy machine gives the same weights, only later. `train` writes a
checkpoint every few minutes, stops on SIGTERM after writing one, and goes on from it with `--resume`.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from tqdm import tqdm

from tools.tale.corpus import Document, render, stream
from tools.tale.model import SHAPES, Llama
from tools.tale.muon import Muon

TOP = 12
"""Tokens whose probabilities are stored at each position."""
WARMUP = 0.02
START = 1_000_000
"""The first document whose requests the teacher answers: documents below are for training on the corpus."""


@dataclass
class Texts:
    """Documents one after the other; with a teacher, what it says of each token from `first` of its document on.

    ids [N]; lengths, first [D]; likely, chances [N, TOP] or None: of the token that follows.
    """

    ids: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
    likely: np.ndarray | None = None
    chances: np.ndarray | None = None

    @classmethod
    def load(cls, path: Path) -> Texts:
        stored = np.load(path)
        return cls(**{name: stored[name] for name in stored.files})

    def save(self, path: Path) -> None:
        np.savez(path, **{name: value for name, value in vars(self).items() if value is not None})


def encoded(tokenizer: Path, documents: int) -> Texts:
    """Documents of the training split."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(tokenizer))
    docs: list[list[int]] = []
    for start in tqdm(range(0, documents, 500), desc="encode", unit="chunk"):
        texts = [d.text for d in stream(start, min(500, documents - start))]
        docs += [e.ids for e in made.encode_batch(texts, add_special_tokens=False)]
    ids = np.fromiter((t for d in docs for t in d), dtype=np.uint16)
    return Texts(ids, np.array([len(d) for d in docs], np.int32), np.zeros(len(docs), np.int32))


def question(document: Document, rng: random.Random) -> str:
    """What the teacher is to continue: a conversation up to one of its answers, or the beginning of a story."""
    if not document.messages:
        words = document.text.split(" ")
        return " ".join(words[: rng.randint(3, 6)])
    turns = [i for i, m in enumerate(document.messages) if m["role"] == "assistant"]
    return render(document.messages[: rng.choice(turns)], generate=True)


def written(teacher: Path, documents: int, heldout: bool = False, seed: int = 0, threads: int = 1) -> Texts:
    """What the teacher writes: three in ten greedily, the others at temperatures up to 1."""
    from headrace import LLM, SamplingParams

    rng = random.Random(f"tale/distil/{seed}/{heldout}")
    llm = LLM(str(teacher), max_num_seqs=64, num_threads=threads, enable_prefix_caching=False)
    prompts = [
        llm.tokenizer.encode(question(d, rng), add_special_tokens=False)
        for d in stream(START, documents, heldout)
    ]
    params = [
        SamplingParams(temperature=rng.choice((0.0, 0.0, 0.0, 0.5, 0.7, 0.7, 0.7, 1.0, 1.0, 1.0)),
                       seed=i, max_tokens=400, logprobs=TOP)
        for i in range(len(prompts))
    ]  # fmt: skip
    docs, lengths, first, likely, chances = [], [], [], [], []
    for at in tqdm(range(0, len(prompts), 256), desc="write", unit="batch"):
        outputs = llm.generate(prompts[at : at + 256], params[at : at + 256], use_tqdm=False)
        for prompt, output in zip(prompts[at : at + 256], outputs, strict=True):
            done = output.outputs[0]
            ids = [*prompt, *done.token_ids]
            top = np.zeros((len(ids), TOP), np.uint16)
            part = np.zeros((len(ids), TOP), np.float16)
            for place, found in enumerate(done.logprobs or (), start=len(prompt) - 1):
                best = sorted(found.items(), key=lambda one: -one[1].logprob)[:TOP]
                top[place] = [token for token, _ in best]
                part[place] = np.exp([entry.logprob for _, entry in best])
            docs.append(ids)
            lengths.append(len(ids))
            first.append(len(prompt) - 1)
            likely.append(top)
            chances.append(part)
    return Texts(
        np.fromiter((t for d in docs for t in d), dtype=np.uint16),
        np.array(lengths, np.int32), np.array(first, np.int32), np.concatenate(likely), np.concatenate(chances),
    )  # fmt: skip


def answered(tokenizer: Path, texts: Texts) -> Iterator[str]:
    """A line of JSON for each document: its prompt, and what the teacher wrote."""
    from tokenizers import Tokenizer

    made, at = Tokenizer.from_file(str(tokenizer)), 0
    for length, first in zip(texts.lengths.tolist(), texts.first.tolist(), strict=True):
        ids = texts.ids[at : at + length].tolist()
        parts = (ids[1 : first + 1], ids[first + 1 :])  # readers put the first token there themselves
        prompt, completion = (made.decode(part, skip_special_tokens=False) for part in parts)
        yield json.dumps({"prompt": prompt, "completion": completion}) + "\n"
        at += length


class Batches:
    """Endless batches of whole documents of similar length, in a seeded order that can be resumed by step."""

    def __init__(self, texts: Texts, tokens: int, seed: int) -> None:
        self.texts, self.tokens, self.seed = texts, tokens, seed
        ends = np.cumsum(texts.lengths, dtype=np.int64)
        self.starts = ends - texts.lengths

    def plan(self, epoch: int) -> list[list[int]]:
        """The documents of each batch of an epoch."""
        rng = random.Random(f"{self.seed}/{epoch}")
        order = list(range(len(self.texts.lengths)))
        rng.shuffle(order)
        batches: list[list[int]] = []
        for at in range(0, len(order), 512):
            batch: list[int] = []
            for one in sorted(order[at : at + 512], key=lambda d: int(self.texts.lengths[d])):
                if batch and int(self.texts.lengths[one]) * (len(batch) + 1) > self.tokens:
                    batches.append(batch)
                    batch = []
                batch.append(one)
            batches.append(batch)
        rng.shuffle(batches)
        return batches

    def stream(self, step: int) -> Iterator[list[int]]:
        epoch = 0
        while True:
            batches = self.plan(epoch)
            if step < len(batches):
                yield from batches[step:]
            step, epoch = max(0, step - len(batches)), epoch + 1

    def tensors(self, batch: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """ids [B, n], whether the next token counts [B, n], likely and chances [B, n, TOP]."""
        texts = self.texts
        longest = min(1024, max(int(texts.lengths[d]) for d in batch))
        ids = torch.full((len(batch), longest), 5)
        counts = torch.zeros((len(batch), longest), dtype=torch.bool)
        taught = texts.likely is not None and texts.chances is not None
        likely = torch.zeros((len(batch), longest, TOP if taught else 1), dtype=torch.int64)
        chances = torch.zeros((len(batch), longest, TOP)) if taught else None
        for row, d in enumerate(batch):
            n, start = min(longest, int(texts.lengths[d])), int(self.starts[d])
            part = slice(start, start + n)
            ids[row, :n] = torch.from_numpy(texts.ids[part].astype(np.int64))
            counts[row, int(texts.first[d]) : n - 1] = True
            if chances is not None:
                assert texts.likely is not None and texts.chances is not None
                likely[row, :n] = torch.from_numpy(texts.likely[part].astype(np.int64))
                chances[row, :n] = torch.from_numpy(texts.chances[part].astype(np.float32))
            else:
                likely[row, : n - 1, 0] = ids[row, 1:n]
        return ids, counts, likely, chances


def losses(model: Llama, batch: tuple[Tensor, Tensor, Tensor, Tensor | None]) -> tuple[Tensor, Tensor, int]:
    """Mean loss over the tokens that count; how many of them have the draft's greedy token first; how many count."""
    ids, counts, likely, chances = batch
    logits = model(ids)[counts].float()  # [C, V]
    wanted = likely[counts]  # [C, TOP or 1]
    with torch.no_grad():
        right = (logits.argmax(-1) == wanted[:, 0]).sum()
    if chances is None:
        return F.cross_entropy(logits, wanted[:, 0]), right, len(wanted)
    p = chances[counts]
    p = p / p.sum(-1, keepdim=True)
    logp = logits.gather(1, wanted) - logits.logsumexp(-1, keepdim=True)
    return (p * (p.clamp(min=1e-6).log() - logp)).sum(-1).mean(), right, len(wanted)


def rate(share: float) -> float:
    """Learning-rate factor at a share of the budget: up, steady, then linearly to zero over the last half."""
    return max(0.02, share / WARMUP) if share < WARMUP else min(1.0, max(0.0, (1.0 - share) * 2))


def begin(name: str, teacher: Path | None) -> Llama:
    """A new draft. With a teacher its embeddings are the principal components of the teacher's."""
    model = Llama(SHAPES[name])
    if teacher is not None:
        table = load_file(teacher / "model.safetensors")["model.embed_tokens.weight"].float()
        width = SHAPES[name].hidden_size
        _, _, directions = torch.linalg.svd(table - table.mean(0), full_matrices=False)
        part = table @ directions[:width].T
        with torch.no_grad():
            model.model.embed_tokens.weight.copy_(part * (0.5 / part.std()))
    return model


@torch.no_grad()
def measure(model: Llama, texts: Texts) -> tuple[float, float]:
    """Loss and greedy agreement over all documents."""
    batches = Batches(texts, 4096, 0)
    total, right, count = 0.0, 0, 0
    for batch in batches.plan(0):
        loss, hits, n = losses(model, batches.tensors(batch))
        total, right, count = total + loss.item() * n, right + int(hits), count + n
    return total / count, right / count


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    model = begin(args.model, args.teacher)
    step, seen, spent, before = 0, 0, 0.0, (0, 0.0)
    if args.start is not None:
        state = torch.load(args.start)
        model.load_state_dict(state["model"])
        before = (state["seen"], state["spent"])
    named = dict(model.named_parameters())
    matrices = [p for n, p in named.items() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in named.items() if p.ndim != 2 or "embed" in n]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=args.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
    if args.resume and args.out.exists():
        state = torch.load(args.out)
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        muon.buffers = state["muon"]
        step, seen, spent = state["step"], state["seen"], state["spent"]

    def save() -> None:
        part = args.out.with_suffix(".part")
        made = {"model": model.state_dict(), "adam": adam.state_dict(), "muon": muon.buffers}
        torch.save({**made, "step": step, "seen": seen, "spent": spent, "before": before}, part)
        part.replace(args.out)

    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    batches = Batches(Texts.load(args.data), args.tokens, args.seed)
    pool = ThreadPoolExecutor(1)
    last = saved = time.process_time()
    smooth, agree = 0.0, 0.0
    bar = tqdm(total=args.budget, initial=seen, unit="tok", unit_scale=True, mininterval=20)
    for shown, batch in enumerate(batches.stream(step), 1):
        if seen >= args.budget or stop:
            break
        loss, right, count = losses(model, batches.tensors(batch))
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        factor = rate(seen / args.budget)
        for group in adam.param_groups:
            group["lr"] = args.adam_lr * factor
        adam.step()
        muon.step(args.muon_lr * factor, pool)
        model.zero_grad(set_to_none=True)
        step, seen = step + 1, seen + sum(int(batches.texts.lengths[d]) for d in batch)
        keep = min(0.97, 1 - 1 / shown)
        smooth = keep * smooth + (1 - keep) * loss.item()
        agree = keep * agree + (1 - keep) * int(right) / count
        now = time.process_time()
        spent, last = spent + now - last, now
        bar.update(seen - bar.n)
        if step % 50 == 0 or step in (1, 10):
            bar.write(
                f"step {step} loss {smooth:.4f} right {agree:.3f} tokens {seen} cpu {spent:.0f} s {seen / spent:.0f}/s"
            )
        if now - saved > 60:
            save()
            saved = now
    save()
    if stop:
        raise SystemExit(f"stopped at step {step}; go on with --resume")
    if args.heldout is not None:
        loss, right = measure(model, Texts.load(args.heldout))
        print(
            f"done: steps {step}, tokens {seen}, cpu {spent / 60:.1f} min, held-out loss {loss:.4f}, right {right:.4f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    corpus = commands.add_parser("corpus", help="encode documents")
    corpus.add_argument("--tokenizer", type=Path, required=True)
    write = commands.add_parser("write", help="let the teacher write")
    write.add_argument("--teacher", type=Path, required=True, help="its exported folder")
    write.add_argument("--heldout", action="store_true")
    answers = commands.add_parser(
        "answers", help="what was written, as lines for `headrace train-heads --data`"
    )
    answers.add_argument("--tokenizer", type=Path, required=True)
    answers.add_argument("--data", type=Path, required=True)
    answers.add_argument("--out", type=Path, required=True, help="the .jsonl file to write")
    for one in (corpus, write):
        one.add_argument("--out", type=Path, required=True, help="the .npz file to write")
        one.add_argument("--documents", type=int, required=True)
    run = commands.add_parser("train", help="train the draft")
    run.add_argument("--model", choices=list(SHAPES), default="tale-draft")
    run.add_argument("--teacher", type=Path, help="an exported folder: start with its embeddings")
    run.add_argument("--start", type=Path, help="a checkpoint: start with its weights")
    run.add_argument("--data", type=Path, required=True)
    run.add_argument("--heldout", type=Path, help="what the teacher wrote about the held-out split")
    run.add_argument("--out", type=Path, required=True, help="the checkpoint to write")
    run.add_argument("--budget", type=int, default=3_000_000, help="tokens in all")
    run.add_argument("--tokens", type=int, default=2048, help="tokens a step, padding included")
    run.add_argument("--muon-lr", type=float, default=0.015)
    run.add_argument("--adam-lr", type=float, default=0.004)
    run.add_argument("--threads", type=int, default=1)
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    if args.command == "train":
        train(args)
    elif args.command == "answers":
        args.out.write_text("".join(answered(args.tokenizer, Texts.load(args.data))))
    elif args.command == "corpus":
        encoded(args.tokenizer, args.documents).save(args.out)
    else:
        written(args.teacher, args.documents, args.heldout).save(args.out)


if __name__ == "__main__":
    main()
