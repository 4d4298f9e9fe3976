"""The texts that inputs of matrices are taken from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from headrace.errors import ConfigError
from headrace.evaluation.documents import Document, Encoder, Record, beginnings, given_documents, plain_text
from headrace.models.source import BUNDLED_FOLDER

BUNDLED_CALIBRATION = BUNDLED_FOLDER / "calibration.jsonl"
"""Stories that are neither in the text that the bundled models are measured on, nor in what they were trained on."""

ENOUGH = 2 << 20
"""Characters that are tokenized of a file with more, if they give enough texts."""
_PIECE = 1 << 16
"""Characters of a longer text that count as a text of its own."""


_ROUNDS = 4
_SHORTEST = 2
"""Tokens: a text of fewer has nothing to attend to."""


class Writer(Protocol):
    """A model that continues texts."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def begin(self) -> int | None:
        """The token that a text begins with, if the model has one."""
        ...

    def sample(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], longest: int
    ) -> list[tuple[int, ...]]:
        """A continuation of each prompt at temperature 1, drawn by its seed; both together are at
        most `longest` tokens long."""
        ...


def own_texts(
    writer: Writer,
    samples: int,
    length: int,
    seed: int,
    records: Sequence[Record] = (),
    encoder: Encoder | None = None,
) -> list[tuple[int, ...]]:
    """So many texts of at most `length` tokens that the model samples itself (Williams et al. 2024,
    https://arxiv.org/abs/2410.17170): from the token that texts begin with, or from a random one where there is none.

    records: with these and their encoder, from their beginnings instead. Raises ConfigError where none of these can be
    continued, and where the model ends nearly all of its texts at once.
    """
    rng = random.Random(seed)
    found: list[tuple[int, ...]] = []
    for _ in range(_ROUNDS):
        missing = samples - len(found)
        if not missing:
            break
        if encoder is not None:
            prompts = beginnings(records, encoder, missing, rng, length - 1)
            if not prompts:
                raise ConfigError(
                    f"no text can be continued: all are empty, or prompts of more than {length - 1} tokens"
                )
        else:
            first = writer.begin
            prompts = [[rng.randrange(writer.vocab_size) if first is None else first] for _ in range(missing)]
        seeds = [rng.getrandbits(31) for _ in prompts]
        written = writer.sample(prompts, seeds, length)
        texts = [(*prompt, *more) for prompt, more in zip(prompts, written, strict=True)]
        found += [one for one in texts if len(one) >= _SHORTEST]
    if len(found) < samples:
        raise ConfigError(
            f"the model ended its texts at once: {len(found)} of {samples} have {_SHORTEST} tokens; give texts with "
            "--data, without --self-calibration or as beginnings for it"
        )
    return found


def calibration_texts(
    records: Sequence[Record], encoder: Encoder, samples: int, length: int, seed: int, where: object
) -> list[tuple[int, ...]]:
    """So many texts of at most `length` tokens, drawn without replacement; longer ones are cut into several.

    Of records with more than ENOUGH characters some are drawn first, so that large files take no longer.
    Raises ConfigError, naming `where` they come from, if there are fewer.
    """
    pieces = [piece for record in records for piece in _pieces(record)]
    if sum(map(_characters, pieces)) > ENOUGH:
        random.Random(seed).shuffle(pieces)
    found: list[Document] = []
    read = 0
    for piece in pieces:
        if read >= ENOUGH and len(found) >= samples:
            break
        found += given_documents([piece], encoder, length)
        read += _characters(piece)
    if len(found) < samples:
        raise ConfigError(
            f"{where} holds {len(found)} texts of 2 to {length} tokens, not {samples}: give more text with --data, or "
            f"fewer --samples"
        )
    return [one.ids for one in random.Random(seed).sample(found, samples)]


def _pieces(record: Record) -> list[Record]:
    text = plain_text(record)
    if text is None or len(text) <= _PIECE:
        return [record]
    return [{"text": text[at : at + _PIECE]} for at in range(0, len(text), _PIECE)]


def _characters(record: Record) -> int:
    return sum(len(str(value)) for value in record.values())
