"""Muon in float32: momentum updates made nearly orthogonal, for 2-D matrices.

The Newton-Schulz steps run in float32, because a machine without bfloat16 units is slow in it.
"""

from __future__ import annotations

from concurrent.futures import Executor

import torch
from torch import Tensor, nn


def orthogonal(g: Tensor, steps: int = 4) -> Tensor:
    """Newton-Schulz iteration on a matrix."""
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    result: Tensor = x.mT if tall else x
    return result


class Muon:
    """Nesterov momentum with orthogonal updates."""

    def __init__(self, params: list[nn.Parameter], momentum: float = 0.95, decay: float = 0.1) -> None:
        self.params = params
        self.buffers = [torch.zeros_like(p) for p in params]
        self.momentum, self.decay = momentum, decay

    @torch.no_grad()
    def _update(self, p: nn.Parameter, buffer: Tensor, lr: float) -> None:
        assert p.grad is not None
        buffer.lerp_(p.grad, 1 - self.momentum)
        update = orthogonal(p.grad.lerp(buffer, self.momentum))
        scale = max(1.0, p.shape[0] / p.shape[1]) ** 0.5
        p.mul_(1 - lr * self.decay).add_(update, alpha=-lr * scale)

    def step(self, lr: float, pool: Executor) -> None:
        """Update every matrix; the pool's threads share the work."""
        jobs = [pool.submit(self._update, p, b, lr) for p, b in zip(self.params, self.buffers, strict=True)]
        for job in jobs:
            job.result()
