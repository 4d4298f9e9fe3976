"""Orthogonal matrices that spread each feature over all: Hadamard matrices with random signs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """x -> x Q for rows of `size` features, Q orthogonal: signs, then a Hadamard matrix of order 2^doublings times
    `core`'s. core: [m, m] float64, orthogonal; 2^doublings * m features in all. signs: [size], 1 or -1."""

    size: int
    doublings: int
    core: Tensor
    signs: Tensor

    def rows(self, values: Tensor) -> Tensor:
        """[..., size] times Q, in the type of the values."""
        turned: Tensor = (values * self.signs.to(values.dtype)).unflatten(-1, (-1, len(self.core)))
        turned = turned @ self.core.to(values.dtype)  # [..., 2^k, m]
        shape = turned.shape
        for number in range(self.doublings):
            pairs = turned.reshape(*shape[:-2], -1, 2, (1 << number) * shape[-1])
            first, second = pairs[..., 0, :], pairs[..., 1, :]
            turned = torch.stack((first + second, first - second), dim=-2)
        turned = turned * 2.0 ** (-self.doublings / 2)
        return turned.reshape(*shape[:-2], self.size)

    def columns(self, matrix: Tensor) -> Tensor:
        """The transpose of Q times a matrix [..., size, C]: what makes the features makes them rotated."""
        return self.rows(matrix.transpose(-1, -2)).transpose(-1, -2).contiguous()


def rotation(size: int, seed: int) -> Rotation:
    """A random one. A Hadamard matrix of the size where Sylvester's and Paley's constructions (1933) give one: of
    2^k m, m - 1 a prime of 4 n + 3 or m / 2 - 1 one of 4 n + 1; else a Hadamard matrix of the power of two in the size,
    times a random orthogonal one."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (size,), generator=generator).double() * 2 - 1
    most = (size & -size).bit_length() - 1  # the size is an odd number times 2^most
    for doublings in range(most, -1, -1):
        core = _hadamard(size >> doublings)
        if core is not None:
            return Rotation(size, doublings, core / len(core) ** 0.5, signs)
    odd = size >> most
    core = torch.linalg.qr(torch.randn(odd, odd, generator=generator, dtype=torch.float64)).Q
    return Rotation(size, most, core, signs)


def _hadamard(order: int) -> Tensor | None:
    """[order, order] of 1 and -1, by Paley; None where neither of his constructions has one."""
    if order == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if order % 4:
        return None
    if _is_prime(order - 1) and (order - 1) % 4 == 3:
        return torch.eye(order, dtype=torch.float64) + _conference(order - 1, -1)
    half = order // 2
    if _is_prime(half - 1) and (half - 1) % 4 == 1:
        ones = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        turned = torch.tensor([[1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
        eye = torch.eye(half, dtype=torch.float64)
        return torch.kron(_conference(half - 1, 1), ones) + torch.kron(eye, turned)
    return None


def _conference(prime: int, sign: int) -> Tensor:
    """[p + 1, p + 1]: 0 on the diagonal, 1 above a border of `sign`, and inside 1 where the difference of the places is
    a square modulo p."""
    squares = {number * number % prime for number in range(1, prime)}
    of = torch.tensor(
        [0.0] + [1.0 if one in squares else -1.0 for one in range(1, prime)], dtype=torch.float64
    )
    places = torch.arange(prime)
    found = torch.zeros(prime + 1, prime + 1, dtype=torch.float64)
    found[1:, 1:] = of[(places[:, None] - places[None]) % prime]
    found[0, 1:], found[1:, 0] = 1.0, float(sign)
    return found


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % one for one in range(2, math.isqrt(number) + 1))
