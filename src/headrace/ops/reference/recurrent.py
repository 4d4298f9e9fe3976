"""Recurrent layers over a ragged batch whose states lie in slots.

The tokens of a sequence are taken one by one, so the numbers do not depend on how a prompt is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from headrace.ops.signatures import Slots


def short_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor,
    cu_q: torch.Tensor,
    slots: Sequence[Slots],
) -> torch.Tensor:
    """A causal convolution of each channel: y[t] = bias + sum over w of weight[:, w] * x[t - W + 1 + w], float32.

    x: [T, C]. weight: [C, W]. states: [N, W - 1, C] float32, the inputs at the W - 1 positions before, the oldest
    first; read and written as `slots` says, one a sequence.
    """
    channels, width = weight.shape
    out = torch.empty((len(x), channels), dtype=torch.float32, device=x.device)
    bounds = cu_q.tolist()
    taps = weight.float().T.contiguous()  # [W, C]
    for moves, begin, end in zip(slots, bounds, bounds[1:], strict=False):
        before = states.new_zeros(width - 1, channels) if moves.source < 0 else states[moves.source]
        inputs = torch.cat((before, x[begin:end].float()))  # [W - 1 + n, C]
        total = torch.zeros(end - begin, channels, device=x.device)
        for at in range(width):
            total = total + taps[at] * inputs[at : at + end - begin]
        out[begin:end] = total if bias is None else total + bias.float()
        for count, slot in moves.writes:
            states[slot] = inputs[count : count + width - 1]
    return out


def gated_delta(
    qkv: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    rate: torch.Tensor,
    time: torch.Tensor,
    states: torch.Tensor,
    cu_q: torch.Tensor,
    slots: Sequence[Slots],
    *,
    num_key_heads: int,
    tiled: bool = False,
) -> torch.Tensor:
    """The gated delta rule (Yang et al. 2024, "Gated Delta Networks", equation 10) for heads of a state S [Dk, Dv].

    For each token: S = exp(g) * S; S = S + k (beta * (v - k S)); o = q S, with g = -exp(rate) * softplus(decay + time),
    the sigmoid of beta, and q and k divided by their lengths, q by the root of Dk too. Each key head serves as many
    heads of values, which stand next to each other, or Hk apart if `tiled`.

    qkv: [T, 2 * Hk * Dk + H * Dv]. beta, decay: [T, H]. rate, time: [H]. states: [N, H, Dk, Dv] float32, read and
    written as `slots` says, one a sequence. Gives [T, H, Dv] float32.
    """
    heads, key_dim, value_dim = states.shape[1:]
    widths = (num_key_heads * key_dim, num_key_heads * key_dim, heads * value_dim)
    q, k, v = (part.float() for part in qkv.split(widths, dim=-1))
    share = heads // num_key_heads
    units = [_unit(part.unflatten(-1, (num_key_heads, key_dim))) for part in (q, k)]  # [T, Hk, Dk]
    q, k = (one.repeat(1, share, 1) if tiled else one.repeat_interleave(share, dim=1) for one in units)
    q, v = q * key_dim**-0.5, v.unflatten(-1, (heads, value_dim))
    kept = torch.exp(-torch.exp(rate.float()) * F.softplus(decay.float() + time.float()))  # [T, H]
    written = torch.sigmoid(beta.float())
    out = torch.empty_like(v)
    bounds = cu_q.tolist()
    for moves, begin, end in zip(slots, bounds, bounds[1:], strict=False):
        state = states.new_zeros(states.shape[1:])
        if moves.source >= 0:
            state = states[moves.source].clone()
        writes = list(moves.writes)
        for t in range(begin, end):
            state = state * kept[t, :, None, None]
            found = (k[t, :, :, None] * state).sum(dim=1)  # [H, Dv]
            change = written[t, :, None] * (v[t] - found)
            state = state + k[t, :, :, None] * change[:, None, :]
            out[t] = (q[t, :, :, None] * state).sum(dim=1)
            while writes and writes[0][0] == t - begin + 1:
                states[writes.pop(0)[1]] = state
    return out


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)
