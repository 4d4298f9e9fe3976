"""Order of logits within a row: by falling value, equal values by rising token id, on every device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headrace.runner.sampling_width import first_width

_ID_MASK = 0xFFFF_FFFF
_MAGNITUDE = 0x7FFF_FFFF


def rank(rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The first `width` values and token ids of rows [N, V] float32, each [N, width], in the order above.

    Exact for every value greater than the last one returned; of the tokens equal to the last one, some may be
    missing unless width == V. -0.0 equals 0.0. Rows that hold NaN come out in an unspecified order.
    """
    if width < rows.shape[1]:
        values, ids = rows.topk(width, dim=-1)
    else:
        values, ids = rows, torch.arange(width, device=rows.device).expand(rows.shape)
    bits = (values + 0.0).view(torch.int32)  # adding 0.0 turns -0.0 into 0.0
    rising = bits ^ ((bits >> 31) & _MAGNITUDE)  # as whole numbers these order like the floats
    keys = ((~rising).to(torch.int64) << 32) | ids
    ids = _sorted(keys) & _ID_MASK
    return rows.gather(1, ids), ids


def top(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The first k values and token ids of rows [N, V] float32, each [N, k], exact also among equal values."""
    vocab_size = rows.shape[1]
    width = first_width(k, vocab_size)
    values, ids = rank(rows, width)
    if width < vocab_size:
        unsettled = (values[:, k - 1] <= values[:, -1]).nonzero().flatten()
        if len(unsettled):
            exact_values, exact_ids = rank(rows.index_select(0, unsettled), vocab_size)
            values[unsettled] = exact_values[:, :width]
            ids[unsettled] = exact_ids[:, :width]
    return values[:, :k], ids[:, :k]


def _sorted(keys: Tensor) -> Tensor:
    # Keys are distinct, so both sorts give the same. NumPy's is vectorised and several times faster than
    # torch's.
    if keys.device.type == "cpu":
        return torch.from_numpy(np.sort(keys.numpy(), axis=-1))
    return torch.sort(keys, dim=-1).values
