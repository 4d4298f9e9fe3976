"""What stands before and after the layers of a model: embeddings, the last norm, and the head, which is a matrix of its
own wherever it is rotated or becomes codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from headrace.errors import UnsupportedModel
from headrace.models.families import read_spec, weight_names
from headrace.models.floats import ARRAY_TYPES, to_dtype, to_float32
from headrace.models.loader import read_some
from headrace.models.safetensors_reader import Checkpoint
from headrace.models.spec import ModelSpec
from headrace.models.stored import StoredWeights
from headrace.models.weights import Projection, Weights
from headrace.program.records import Program, WeightRef
from headrace.quantize.formats.base import Tensor
from headrace.quantize.transforms.plain import PlainTensors, stored_type
from headrace.quantize.transforms.rotations import Rotations

HEAD = "head"
"""Its name among the errors of a report."""


class Ends:
    """coded: the head becomes codes. rotations: of the whole model, None where it is not rotated."""

    def __init__(
        self,
        stored: StoredWeights,
        spec: ModelSpec,
        program: Program,
        rotations: Rotations | None,
        coded: bool,
    ) -> None:
        checkpoint = stored.checkpoint
        assert isinstance(checkpoint, Checkpoint)
        self._checkpoint, self._stored, self._rotations = checkpoint, stored, rotations
        self._coded = coded
        self._norms = program.final_norm.weights
        head = program.head.weights[0]
        ((self._source, rows),) = head.parts
        own = f"{weight_names(spec).head}.weight"
        self._target = own if head.kind == "tied" else checkpoint.stored_name(self._source)
        self.observed = head
        """The weight that the program multiplies with."""
        self.head = replace(head, name=HEAD, kind="matrix", parts=((self._target, rows),), part="head")
        """The same as a matrix of its own, by its name in the files that are made."""

    @property
    def replaced(self) -> set[str]:
        """The tensors of the files that are not copied."""
        names = {self._target} if self._coded or self._rotations is not None else set()
        if self._rotations is not None:
            weights = (*self._rotations.tables, *self._norms)
            names |= {self._checkpoint.stored_name(name) for weight in weights for name, _ in weight.parts}
        return names & self._checkpoint.file_of.keys()

    def rotate_tables(self, weights: Weights) -> None:
        """Those of the segment before the layers, as they will be stored."""
        if self._rotations is None:
            return
        for table in self._rotations.tables:
            array = weights.tables[table.name]
            kind = stored_type(self._checkpoint, table.parts[0][0])[1]
            turned = self._rotations.stream.rows(array).numpy()
            array.copy_(torch.from_numpy(to_float32(to_dtype(turned, kind))))

    def weights(self) -> Weights:
        """The last norm and the head as they are before any rounding to codes, the head by both of its names."""
        found = read_some(self._stored, self._norms, dtype=torch.float32)
        matrix = to_float32(self._head(found).array)
        if self._rotations is not None:
            self._clear(found)
        head = Projection(torch.from_numpy(matrix))
        return Weights({}, found.vectors, {self.observed.name: head, self.head.name: head})

    def tensors(self) -> list[Tensor]:
        """What is rotated and stays floats, to be written."""
        if self._rotations is None:
            return []
        final = read_some(self._stored, self._norms, dtype=torch.float32)
        found = [] if self._coded else [self._head(final)]
        for table in self._rotations.tables:
            ((name, _),) = table.parts
            found.append(self._turned(table, name, self._checkpoint.stored_name(name), None))
        self._clear(final)
        plain = PlainTensors(self._checkpoint)
        return found + [one for norm in self._norms for one in plain.tensors(final, norm, False)]

    def _clear(self, final: Weights) -> None:
        """The head has taken up the norm's weight."""
        for norm in self._norms:
            final.vectors[norm.name].fill_(1.0)

    def _head(self, final: Weights) -> Tensor:
        scales = final.vectors[self._norms[0].name] if self._norms and self._rotations is not None else None
        return self._turned(self.observed, self._source, self._target, scales)

    def _turned(self, weight: WeightRef, name: str, target: str, scales: torch.Tensor | None) -> Tensor:
        """A matrix of rows that read the stream or are it; columns are multiplied by `scales` first."""
        dtype, kind = stored_type(self._checkpoint, name)
        out = np.empty((weight.rows, weight.columns), ARRAY_TYPES[kind])
        for rows, values in self._stored.floats(name):
            part = torch.from_numpy(to_float32(values))
            part = part if scales is None else part * scales
            turned = part if self._rotations is None else self._rotations.stream.rows(part)
            out[rows] = to_dtype(turned.numpy(), kind)
        return Tensor(target, dtype, out)


def untied(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A config whose head is not the embeddings. Raises UnsupportedModel for a family that always ties them."""
    loose: dict[str, Any] = {"tie_word_embeddings": False}
    found = {**config, **loose}
    if isinstance(config.get("text_config"), Mapping):
        found["text_config"] = {**config["text_config"], **loose}
    if read_spec(found).tie_embeddings:
        raise UnsupportedModel(
            f"the config of {name} cannot say that its head is not the embeddings: leave out --rotate and --head"
        )
    return found
