"""What stands before and after the layers of a model that is rotated: embeddings, the last norm, and the head, which is
no longer the embeddings where it was."""

from __future__ import annotations

from collections.abc import Mapping
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
from headrace.models.weights import Weights
from headrace.program.records import WeightRef
from headrace.quantize.formats import Tensor
from headrace.quantize.plain import PlainTensors, stored_type
from headrace.quantize.rotations import Rotations


class RotatedEnds:
    def __init__(self, stored: StoredWeights, spec: ModelSpec, rotations: Rotations) -> None:
        checkpoint = stored.checkpoint
        assert isinstance(checkpoint, Checkpoint)
        self._checkpoint, self._stored, self._rotations = checkpoint, stored, rotations
        ((self._head, _),) = rotations.head.parts
        self._head_name = (
            f"{weight_names(spec).head}.weight" if spec.tie_embeddings else checkpoint.stored_name(self._head)
        )

    @property
    def replaced(self) -> set[str]:
        """The tensors of the files that are written anew."""
        weights = (*self._rotations.tables, *self._rotations.final)
        names = {self._checkpoint.stored_name(name) for weight in weights for name, _ in weight.parts}
        return {*names, self._head_name} & self._checkpoint.file_of.keys()

    def rotate_tables(self, weights: Weights) -> None:
        """Those of the segment before the layers, as they will be stored."""
        for table in self._rotations.tables:
            array = weights.tables[table.name]
            kind = stored_type(self._checkpoint, table.parts[0][0])[1]
            turned = self._rotations.stream.rows(array).numpy()
            array.copy_(torch.from_numpy(to_float32(to_dtype(turned, kind))))

    def tensors(self) -> list[Tensor]:
        """To be written."""
        final = read_some(self._stored, self._rotations.final, dtype=torch.float32)
        scales = final.vectors[self._rotations.final[0].name].clone() if self._rotations.final else None
        plain, found = PlainTensors(self._checkpoint), []
        for norm in self._rotations.final:
            final.vectors[norm.name].fill_(1.0)
            found += plain.tensors(final, norm, False)
        for table in self._rotations.tables:
            ((name, _),) = table.parts
            found.append(self._turned(table, name, self._checkpoint.stored_name(name), None))
        found.append(self._turned(self._rotations.head, self._head, self._head_name, scales))
        return found

    def _turned(self, weight: WeightRef, name: str, target: str, scales: torch.Tensor | None) -> Tensor:
        """A matrix of rows that read the stream or are it; columns are multiplied by `scales` first."""
        dtype, kind = stored_type(self._checkpoint, name)
        out = np.empty((weight.rows, weight.columns), ARRAY_TYPES[kind])
        for rows, values in self._stored.floats(name):
            part = torch.from_numpy(to_float32(values))
            part = part if scales is None else part * scales
            out[rows] = to_dtype(self._rotations.stream.rows(part).numpy(), kind)
        return Tensor(target, dtype, out)


def untied(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A config whose head is not the embeddings. Raises UnsupportedModel for a family that always ties them."""
    loose: dict[str, Any] = {"tie_word_embeddings": False}
    found = {**config, **loose}
    if isinstance(config.get("text_config"), Mapping):
        found["text_config"] = {**config["text_config"], **loose}
    if read_spec(found).tie_embeddings:
        raise UnsupportedModel(
            f"the config of {name} cannot say that its head is not the embeddings: leave out --rotate"
        )
    return found
