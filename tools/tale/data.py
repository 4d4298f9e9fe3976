"""Encodes the training documents once, and packs them into rows.

Every row begins with a document; whole documents follow as they fit, and only the last one of
a row is cut.
"""

from __future__ import annotations

import argparse
import random
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tqdm import tqdm

from tools.tale.corpus import stream

CHUNK = 500


def encode_chunk(job: tuple[str, int, bool]) -> list[list[int]]:
    """Token ids of CHUNK documents."""
    path, start, heldout = job
    tokenizer = Tokenizer.from_file(path)
    texts = [d.text for d in stream(start, CHUNK, heldout)]
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def prepare(tokenizer: Path, out: Path, documents: int, heldout: bool, workers: int) -> None:
    """Write the ids and the document lengths of a split."""
    jobs = [(str(tokenizer), start, heldout) for start in range(0, documents, CHUNK)]
    docs: list[list[int]] = []
    with Pool(workers) as pool:
        for part in tqdm(pool.imap(encode_chunk, jobs), total=len(jobs), desc="encode", unit="chunk"):
            docs += part
    flat = np.fromiter((t for d in docs for t in d), dtype=np.uint16)
    np.savez(out, ids=flat, lengths=np.array([len(d) for d in docs], dtype=np.int32))
    print(f"{len(docs)} documents, {len(flat)} tokens")


class Rows:
    """Endless packed rows, in a seeded order that can be resumed by document number."""

    def __init__(self, path: Path, seed: int = 0, start: int = 0, pool: int = 128) -> None:
        stored = np.load(path)
        self.ids, lengths = stored["ids"], stored["lengths"]
        ends = np.cumsum(lengths)
        self.spans = list(zip((ends - lengths).tolist(), ends.tolist(), strict=True))
        self.rng, self.next, self.size = random.Random(seed + start), start, pool
        self.waiting: list[tuple[int, int]] = []

    def _refill(self) -> None:
        while len(self.waiting) < self.size:
            self.waiting.append(self.spans[self.next % len(self.spans)])
            self.next += 1

    def row(self, length: int) -> np.ndarray:
        """One row of `length` ids."""
        out = np.empty(length, dtype=np.int64)
        filled = 0
        while filled < length:
            self._refill()
            room = length - filled
            index = self.rng.randrange(len(self.waiting))
            if filled:
                fits = [(b - a, i) for i, (a, b) in enumerate(self.waiting) if b - a <= room]
                if fits and max(fits)[0] > room // 3:
                    index = max(fits)[1]
            a, b = self.waiting.pop(index)
            take = min(b - a, room)
            out[filled : filled + take] = self.ids[a : a + take]
            filled += take
        return out

    def batch(self, rows: int, length: int) -> torch.Tensor:
        """A (rows, length) tensor of ids."""
        return torch.from_numpy(np.stack([self.row(length) for _ in range(rows)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the .npz file to write")
    parser.add_argument("--documents", type=int, default=60_000)
    parser.add_argument("--heldout", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    prepare(args.tokenizer, args.out, args.documents, args.heldout, args.workers)


if __name__ == "__main__":
    main()
