"""Types of tensors in GGUF files: how many weights a block holds, and in how many bytes.

Numbers and sizes are those of `ggml_type` in https://github.com/ggml-org/ggml/blob/master/include/ggml.h;
layouts of the blocks are in models/gguf/blocks.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import CheckpointError, UnsupportedModel


@dataclass(frozen=True, slots=True)
class BlockType:
    """A tensor's row is a whole number of blocks: `weights` neighbouring elements in `bytes` bytes."""

    name: str
    number: int  # in the file
    weights: int
    bytes: int

    @property
    def quantized(self) -> bool:
        """Whether its weights are codes, and not floats."""
        return self.weights > 1

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.bytes / self.weights

    def size(self, elements: int) -> int:
        """Bytes of that many elements, which are whole blocks."""
        return elements // self.weights * self.bytes


_RUNNING = (
    BlockType("F32", 0, 1, 4),
    BlockType("F16", 1, 1, 2),
    BlockType("Q4_0", 2, 32, 18),
    BlockType("Q4_1", 3, 32, 20),
    BlockType("Q5_0", 6, 32, 22),
    BlockType("Q5_1", 7, 32, 24),
    BlockType("Q8_0", 8, 32, 34),
    BlockType("Q2_K", 10, 256, 84),
    BlockType("Q3_K", 11, 256, 110),
    BlockType("Q4_K", 12, 256, 144),
    BlockType("Q5_K", 13, 256, 176),
    BlockType("Q6_K", 14, 256, 210),
    BlockType("IQ4_NL", 20, 32, 18),
    BlockType("IQ4_XS", 23, 256, 136),
    BlockType("BF16", 30, 1, 2),
    BlockType("MXFP4", 39, 32, 17),
)

TYPES: Mapping[str, BlockType] = {one.name: one for one in _RUNNING}
"""The types that run, by name."""

_BY_NUMBER = {one.number: one for one in _RUNNING}

REFUSED: Mapping[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
    41: "Q1_0",
}
"""Types that are known and do not run."""


def find_type(number: int, tensor: str) -> BlockType:
    """The type of that number. `tensor` names whose it is: "tensor 'output.weight' in model.gguf".

    Raises UnsupportedModel for a type that does not run, and CheckpointError for one that does not exist.
    """
    found = _BY_NUMBER.get(number)
    if found is not None:
        return found
    running = ", ".join(TYPES)
    if number in REFUSED:
        raise UnsupportedModel(
            f"{tensor} is stored as {REFUSED[number]}, which this version does not read; it reads {running}"
        )
    raise CheckpointError(f"{tensor} has the unknown type {number}; known are {running}")
