"""What loaders need of the files that hold a model's weights, whichever format the files have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.quant.code_format import CodeFormat
    from headrace.quant.coded import Coded

CHUNK = 1 << 22
"""Elements converted at once."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor's type, shape and place in its file. `begin` and `end` are byte offsets from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class WeightFiles(Protocol):
    """The tensors of a model, by the names that its family's program uses.

    Floats are arrays of float32, float64 or float16, or uint16 with the bits of bfloat16; types that are not floats are
    decoded to float32 as they are read.
    """

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The stored types that weights may have."""
        ...

    @property
    def where(self) -> str:
        """The folder or file, for messages."""
        ...

    def names(self) -> Iterable[str]: ...

    def stored_name(self, name: str) -> str:
        """The tensor's name in the file, for messages."""
        ...

    def paths(self) -> list[Path]:
        """The files."""
        ...

    def matrix_dtype(self, excluded: Collection[str] = ()) -> str:
        """The narrowest type that holds every matrix exactly, except those in `excluded`: "float32", "float16" or
        "bfloat16"."""
        ...

    def entry(self, name: str) -> TensorEntry | None: ...

    def array(self, name: str) -> NDArray[Any]:
        """The tensor as floats. A view of the mapped file where it holds floats."""
        ...

    def rows(self, name: str, first: int, last: int) -> NDArray[Any]:
        """Rows `first` to `last` of a tensor, as `array` gives them."""
        ...

    def excerpt(self, name: str, offset: int, size: int) -> bytes:
        """Up to `size` of the tensor's bytes, from `offset` on."""
        ...

    def prefetch(self, name: str) -> None:
        """Ask the system to read the tensor in the background."""
        ...

    def drop(self, name: str) -> None:
        """Release the tensor's pages; a view of it reads them from the file again."""
        ...


class CodedMatrix(Protocol):
    """A matrix that is stored as codes."""

    @property
    def format(self) -> CodeFormat:
        """How its codes are stored. Reads scales and orders, whose numbers decide it, and no codes."""
        ...

    @property
    def tensors(self) -> tuple[TensorEntry, ...]:
        """The tensors that it is made of."""
        ...

    def decode(self) -> Coded:
        """Raises CheckpointError, naming the tensor, where the tensors contradict each other."""
        ...

    def floats(self) -> NDArray[np.float32]:
        """The weights [R, C]."""
        ...

    def blocks(self) -> tuple[str, NDArray[np.uint8]] | None:
        """`format.blocks` and rows [R, bytes of a row] as they lie in the file; None where that holds arrays."""
        ...


class SelfDescribedFiles(WeightFiles, Protocol):
    """Files in which each tensor says how it is stored, and which hold the model's config too."""

    @property
    def method(self) -> str:
        """A name for the ways in which its tensors are stored."""
        ...

    def coded(self) -> Mapping[str, CodedMatrix]:
        """The matrices that are stored as codes, by name. `array` and `rows` decode them as well."""
        ...

    def coded_further(self) -> Mapping[str, CodedMatrix]:
        """Those of a layer after the model's last one, which predicts further tokens: `names` leaves its tensors out,
        and `entry`, `array` and `rows` know them."""
        ...


def rows_of_run(columns: int) -> int:
    """Rows of so many columns that `row_runs` gives at once."""
    return max(1, CHUNK // max(1, columns))


def row_runs(files: WeightFiles, name: str) -> Iterator[tuple[slice, NDArray[Any]]]:
    """A tensor in runs of whole rows of at most about CHUNK elements: (which rows, their floats)."""
    entry = files.entry(name)
    assert entry is not None  # every name was looked up before the first was read
    rows, columns = (entry.shape or (1,))[0], 1
    for size in entry.shape[1:]:
        columns *= size
    step = rows_of_run(columns)
    for first in range(0, rows, step):
        last = min(rows, first + step)
        yield slice(first, last), files.rows(name, first, last)
