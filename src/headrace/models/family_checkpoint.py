"""Checkpoints whose tensors have other names or another arrangement than the family's program expects."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CheckpointError, HeadraceError
from headrace.models.families import Family, find_family
from headrace.models.families.limits import MAX_EXPERTS
from headrace.models.families.reading import Arrangement, ExpertTensors
from headrace.models.families.registry import has_text_part, text_part
from headrace.models.safetensors_reader import Checkpoint
from headrace.models.weight_files import TensorEntry

_TEXT_BODIES = (
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.text_model.",
    "model.",
)
_BESIDE = "mtp."
"""What the names of layers that predict further tokens begin with, beside the text part's."""

_TEXT_HEADS = ("language_model.lm_head.", "lm_head.")
"""What the names of the text part begin with in checkpoints with several parts."""


def open_checkpoint(folder: Path, config: Mapping[str, Any]) -> Checkpoint:
    """The tensors of a model folder, by the names and in the shapes that the family's program uses.

    Raises CheckpointError as `Checkpoint`, and UnsupportedModel for a family that is not known.
    """
    family = find_family(config)
    parts = has_text_part(config)
    checkpoint = Checkpoint(folder)
    if (
        not parts
        and not family.arranged
        and not family.by_expert
        and checkpoint.entry(f"{family.names.embed}.weight") is not None
    ):
        return checkpoint
    return FamilyCheckpoint(checkpoint, family, text_part(config), alone=not parts)


def settle_ties(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config whose parts disagree on tied embeddings (`contradicts_ties`), as its files have it: tied without a head.

    transformers 5 writes such configs, and which part decides depends on the family. Unchanged where the files cannot
    be used: loading them reports the error.
    """
    try:
        head = f"{find_family(config).names.head}.weight"
        ties = {"tie_word_embeddings": open_checkpoint(folder, config).entry(head) is None}
    except HeadraceError:
        return config
    return {**config, **ties, "text_config": {**config["text_config"], **ties}}


@dataclass(frozen=True, slots=True)
class _OfExpert:
    """What a tensor of all experts holds of one: rows part, part + parts, ... of [expert], or so many rows `apart`."""

    expert: int
    experts: int
    part: int
    parts: int
    transposed: bool
    apart: bool

    @property
    def first(self) -> bool:
        return self.expert == 0 and self.part == 0

    @property
    def last(self) -> bool:
        return self.expert == self.experts - 1 and self.part == self.parts - 1

    def entry(self, whole: TensorEntry) -> TensorEntry:
        rows, *others = whole.shape[:0:-1] if self.transposed else whole.shape[1:]
        size = (whole.end - whole.begin) // (self.experts * self.parts)
        begin = (
            whole.begin + (self.expert * self.parts + self.part) * size
        )  # of so many bytes: not where they lie
        return replace(whole, shape=(rows // self.parts, *others), begin=begin, end=begin + size)

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        one = array[self.expert].T if self.transposed else array[self.expert]
        size = len(one) // self.parts
        rows = (
            slice(self.part * size, (self.part + 1) * size)
            if self.apart
            else slice(self.part, None, self.parts)
        )
        return np.ascontiguousarray(one[rows])


class FamilyCheckpoint(Checkpoint):
    """Tensors by other names: of the text part alone, or of a model that was saved without its head.

    alone: there are no tensors besides those of the family.
    """

    def __init__(
        self, checkpoint: Checkpoint, family: Family, config: Mapping[str, Any], *, alone: bool
    ) -> None:
        self.folder, self._file_of = checkpoint.folder, checkpoint.file_of
        self._config = config
        body, head = f"{family.names.embed.split('.')[0]}.", f"{family.names.head}."
        embed = f"{family.names.embed}.weight".removeprefix(body)
        bodies = (body, "") if alone else _TEXT_BODIES
        stored_body = next((one for one in bodies if one + embed in self._file_of), body)
        self._bodies = body, stored_body
        heads = (head,) if alone else _TEXT_HEADS
        self._stored: dict[str, str] = {}
        for name in self._file_of:
            stored_head = next((one for one in heads if name.startswith(one)), None)
            if stored_head is not None:
                self._stored[head + name.removeprefix(stored_head)] = name
            elif name.startswith(stored_body):
                self._stored[body + name.removeprefix(stored_body)] = name
            elif alone or name.startswith(_BESIDE):
                self._stored[name] = name
        for end, other in family.renamed.items():
            for name in [name for name in self._stored if name.endswith(end)]:
                self._stored[name.removesuffix(end) + other] = self._stored.pop(name)
        self._experts: dict[str, _OfExpert] = {}
        for name in list(self._stored):
            for end, tensors in family.by_expert.items():
                if name.endswith(end):
                    self._split(name, name.removesuffix(end), tensors)
        self._arrangements = family.arranged
        self._arranged: dict[str, Arrangement] = {
            name: how for name in self._stored for end, how in family.arranged.items() if name.endswith(end)
        }

    def _split(self, name: str, module: str, tensors: ExpertTensors) -> None:
        """Replace a tensor of all experts by those of each."""
        stored = self._stored.pop(name)
        entry = super().entry(stored)
        assert entry is not None
        count = len(tensors.parts)
        rows = entry.shape[-1] if tensors.transposed else entry.shape[1] if len(entry.shape) > 1 else 0
        if (
            len(entry.shape) < (3 if tensors.transposed else 2)
            or entry.shape[0] > MAX_EXPERTS
            or rows % count
        ):
            raise CheckpointError(
                f"tensor {stored!r:.200} has shape {list(entry.shape)}, which holds no experts"
            )
        for expert in range(entry.shape[0]):
            for part, end in enumerate(tensors.parts):
                one = module + end.replace("{e}", str(expert))
                self._stored[one] = stored
                self._experts[one] = _OfExpert(
                    expert, entry.shape[0], part, count, tensors.transposed, tensors.apart
                )

    def names(self) -> Iterable[str]:
        return self._stored.keys()

    def stored_name(self, name: str) -> str:
        return self._stored.get(name, name)

    def name_for_codes(self, name: str) -> str | None:
        if name in self._experts:  # each has tensors of its own then
            body, stored_body = self._bodies
            return stored_body + name.removeprefix(body)
        return None if self._arranged.get(name) == "qkv-by-head" else self._stored[name]

    def matrix_dtype(self, excluded: Collection[str] = ()) -> str:
        others = self._file_of.keys() - self._stored.values()
        return super().matrix_dtype({*others, *(self.stored_name(name) for name in excluded)})

    def entry(self, name: str) -> TensorEntry | None:
        stored = super().entry(self._stored.get(name, ""))
        if stored is None:
            return None
        one = self._experts.get(name)
        if one is not None:
            return replace(one.entry(stored), name=name)
        how = self._arranged.get(name)
        shape = stored.shape[::-1] if how == "transposed" else stored.shape
        shape = (math.prod(shape),) if how == "flattened" else shape
        return replace(stored, name=name, shape=shape)

    def array(self, name: str) -> NDArray[Any]:
        return self.program_form(name, super().array(self._stored[name]))

    def raw(self, name: str) -> NDArray[Any]:
        return self.program_form(name, super().raw(self._stored[name]))

    def excerpt(self, name: str, offset: int, size: int) -> bytes:
        return super().excerpt(self._stored[name], offset, size)

    def prefetch(self, name: str) -> None:
        one = self._experts.get(name)
        if one is None or one.first:
            super().prefetch(self._stored[name])

    def drop(self, name: str) -> None:
        one = self._experts.get(name)
        if one is None or one.last:
            super().drop(self._stored[name])

    def stored_form(self, name: str, array: NDArray[Any]) -> NDArray[Any] | None:
        if name in self._experts:
            return None
        how = self._arranged.get(name)
        if how is None or not array.size:
            return array
        if how == "flattened":
            stored = super().entry(self._stored[name])
            assert stored is not None
            return array.reshape(stored.shape)
        if how == "transposed":
            return np.ascontiguousarray(array.T)
        stored_rows = np.empty_like(array)
        stored_rows[self._by_head(self._stored[name], len(array))] = array
        return stored_rows

    def program_form(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Whole rows, one after the other in memory."""
        if name in self._experts:
            return self._experts[name].of(array)
        how = self._arranged.get(name)
        if how is None:
            return array
        if how == "flattened":
            return array.reshape(-1)
        if how == "transposed":
            return np.ascontiguousarray(array.T)
        return np.ascontiguousarray(array[self._by_head(self._stored[name], len(array))])

    def code_entry(self, name: str) -> TensorEntry | None:
        if name not in self._arranged:
            return self.entry(name)
        stored = super().entry(self._stored[name])
        return None if stored is None else replace(stored, name=name)

    def codes(self, name: str) -> NDArray[Any]:
        return super().raw(self._stored[name]) if name in self._arranged else self.raw(name)

    def row_order(self, name: str, rows: int) -> Sequence[int] | None:
        arranged = (how for end, how in self._arrangements.items() if name.endswith(end))
        return self._by_head(name, rows) if "qkv-by-head" in arranged else None

    def _by_head(self, name: str, rows: int) -> list[int]:
        """All rows of q, then of k, then of v, of a matrix that has those of a head together."""
        heads = self._config.get("num_attention_heads", self._config.get("n_head"))
        if not isinstance(heads, int) or heads < 1 or rows % (3 * heads):
            raise CheckpointError(
                f"tensor {name!r:.200} has {rows} rows, which q, k and v of {heads!r:.20} heads cannot share"
            )
        order: list[int] = np.arange(rows).reshape(heads, 3, -1).swapaxes(0, 1).reshape(-1).tolist()
        return order
