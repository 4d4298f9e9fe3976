"""The op table: which implementation serves each op, decided once at load and printable afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError
from headrace.ops import signatures

DENSE = "dense"
"""Weight format of plain tensors."""

Facts = Mapping[str, object]
"""What a candidate may ask of the model and the machine, for example head_dim or block_size."""

PLAIN_OPS = ("embedding", "rms_norm", "rope_tables", "apply_rope", "write_kv", "paged_attention")
WEIGHT_OPS = ("linear", "gated_mlp")
"""Ops that are bound once for each weight format."""


@dataclass(frozen=True, slots=True)
class OpKey:
    """What is to be bound. `device` is a torch device type, `dtype` a name such as "bfloat16"."""

    op: str
    device: str
    dtype: str
    format: str = DENSE


@dataclass(frozen=True, slots=True)
class Candidate:
    """One implementation of one op. `accepts` gives None, or in a few words why it cannot serve the key."""

    op: str
    name: str
    call: Callable[..., Any]
    accepts: Callable[[OpKey, Facts], str | None]


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome for one key: the first candidate that accepted, and why those before it did not."""

    key: OpKey
    candidate: Candidate
    refused: tuple[tuple[str, str], ...]  # (candidate name, reason)


@dataclass(frozen=True, slots=True)
class Ops:
    """Ops bound for one model on one device. Weight ops are looked up by weight format, when layers are made."""

    embedding: signatures.Embedding
    rms_norm: signatures.RMSNorm
    rope_tables: signatures.RopeTables
    apply_rope: signatures.ApplyRope
    write_kv: signatures.WriteKV
    paged_attention: signatures.PagedAttention
    linear: Mapping[str, signatures.Linear]
    gated_mlp: Mapping[str, signatures.GatedMLP]
    choices: tuple[Choice, ...]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """For `headrace inspect`: (op, weight format, chosen candidate, why earlier ones refused), one row a key."""
        return [
            (
                choice.key.op,
                choice.key.format,
                choice.candidate.name,
                "; ".join(f"{name}: {reason}" for name, reason in choice.refused),
            )
            for choice in self.choices
        ]


class OpTable:
    """Candidates in order of preference; each op keeps the order in which its candidates were given."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._candidates: dict[str, list[Candidate]] = {}
        for candidate in candidates:
            self._candidates.setdefault(candidate.op, []).append(candidate)

    def choose(self, key: OpKey, facts: Facts, force: str | None = None) -> Choice:
        """The first candidate that accepts `key`; a candidate named `force` goes first and must accept.

        Raises ConfigError if the forced candidate refuses, or if none accepts.
        """
        candidates = self._candidates.get(key.op, [])
        forced = [candidate for candidate in candidates if candidate.name == force]
        refused: list[tuple[str, str]] = []
        for candidate in forced or candidates:
            reason = candidate.accepts(key, facts)
            if reason is None:
                return Choice(key, candidate, tuple(refused))
            refused.append((candidate.name, reason))
        why = "; ".join(f"{name}: {reason}" for name, reason in refused) or "there is no candidate"
        raise ConfigError(f"no {key.op} for {key.dtype} {key.format} weights on {key.device} ({why})")

    def bind(
        self,
        *,
        device: str,
        dtype: str,
        formats: Sequence[str] = (DENSE,),
        facts: Facts | None = None,
        force: str | None = None,
    ) -> Ops:
        """Choose every op once. `force` names a candidate to prefer for every op that has one of that name.

        Raises ConfigError as `choose` does, and if no op has a candidate named `force`.
        """
        names = {candidate.name for group in self._candidates.values() for candidate in group}
        if force is not None and force not in names:
            raise ConfigError(f"no op is implemented by {force!r}; there are {', '.join(sorted(names))}")
        known = facts or {}
        plain = {op: self.choose(OpKey(op, device, dtype), known, force) for op in PLAIN_OPS}
        by_format = {
            op: {name: self.choose(OpKey(op, device, dtype, name), known, force) for name in formats}
            for op in WEIGHT_OPS
        }
        return Ops(
            **{op: choice.candidate.call for op, choice in plain.items()},
            linear={name: choice.candidate.call for name, choice in by_format["linear"].items()},
            gated_mlp={name: choice.candidate.call for name, choice in by_format["gated_mlp"].items()},
            choices=(*plain.values(), *(choice for group in by_format.values() for choice in group.values())),
        )
