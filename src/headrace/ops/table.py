"""The op table: which implementation serves each op, decided once at load and printable afterwards."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError
from headrace.ops import signatures

DENSE = "dense"
"""Weight format of plain tensors."""

Facts = Mapping[str, object]
"""What a candidate may ask of the model and the machine, for example head_dim or block_size."""

PLAIN_OPS = (
    "embedding",
    "rms_norm",
    "layer_norm",
    "rope_tables",
    "apply_rope",
    "write_kv",
    "paged_attention",
    "route",
    "short_convolution",
    "gated_delta",
)
WEIGHT_OPS = ("linear", "gated_linear", "expert_linear", "heads_linear")
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
    """One implementation of one op. `accepts` gives None, or in a few words why it cannot serve the key.

    target: the function, or "module:function" or "module:class.method", imported only where the candidate is chosen
    and used.
    suite: candidates of one name serve all ops of a model or none, because they share layouts of their own.
    on_demand: taken only where it is forced.
    """

    op: str
    name: str
    target: Callable[..., Any] | str
    accepts: Callable[[OpKey, Facts], str | None]
    suite: bool = False
    on_demand: bool = False

    def load(self) -> Callable[..., Any]:
        """The function itself."""
        if not isinstance(self.target, str):
            return self.target
        module, _, function = self.target.partition(":")
        loaded: Callable[..., Any] = operator.attrgetter(function)(importlib.import_module(module))
        return loaded


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome for one key: the first candidate that accepted, and why those before it did not."""

    key: OpKey
    candidate: Candidate
    refused: tuple[tuple[str, str], ...]  # (candidate name, reason)


@dataclass(frozen=True, slots=True)
class SuiteChoice:
    """The suite that serves a model, or None, and why those before it do not."""

    name: str | None
    refused: tuple[tuple[str, str], ...]  # (suite, reason)

    @property
    def why(self) -> str:
        """The reasons in one line, equal ones together; without names where all suites give the same one."""
        suites: dict[str, list[str]] = {}
        for name, reason in self.refused:
            suites.setdefault(reason, []).append(name)
        if self.name is None and len(suites) == 1 and len(self.refused) > 1:
            return self.refused[0][1]
        return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in suites.items())


@dataclass(frozen=True, slots=True)
class Ops:
    """Ops bound for one model on one device. Weight ops are looked up by weight format, when layers are made."""

    embedding: signatures.Embedding
    rms_norm: signatures.RMSNorm
    layer_norm: signatures.LayerNorm
    rope_tables: signatures.RopeTables
    apply_rope: signatures.ApplyRope
    write_kv: signatures.WriteKV
    paged_attention: signatures.PagedAttention
    route: signatures.Route
    short_convolution: signatures.ShortConvolution
    gated_delta: signatures.GatedDelta
    linear: Mapping[str, signatures.Linear]
    gated_linear: Mapping[str, signatures.GatedLinear]
    expert_linear: Mapping[str, signatures.ExpertLinear]
    heads_linear: Mapping[str, signatures.HeadsLinear]
    choices: tuple[Choice, ...]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """See Selection.rows."""
        return Selection(None, self.choices).rows()


@dataclass(frozen=True, slots=True)
class Selection:
    """What was chosen for every key, nothing imported yet. `suite` names the one that serves them all, if one does."""

    suite: str | None
    choices: tuple[Choice, ...]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """For `headrace inspect`: (op, weight format, chosen candidate, why earlier ones refused), one row a key."""
        return [
            (choice.key.op, choice.key.format, choice.candidate.name, SuiteChoice(None, choice.refused).why)
            for choice in self.choices
        ]

    def load(self) -> Ops:
        """Import what was chosen."""
        plain = {choice.key.op: choice.candidate.load() for choice in self.choices}
        by_format: dict[str, dict[str, Any]] = {op: {} for op in WEIGHT_OPS}
        for choice in self.choices:
            if choice.key.op in WEIGHT_OPS:
                by_format[choice.key.op][choice.key.format] = choice.candidate.load()
        return Ops(
            **{op: plain[op] for op in PLAIN_OPS},
            linear=by_format["linear"],
            gated_linear=by_format["gated_linear"],
            expert_linear=by_format["expert_linear"],
            heads_linear=by_format["heads_linear"],
            choices=self.choices,
        )


class OpTable:
    """Candidates in order of preference; each op keeps the order in which its candidates were given, but for suites,
    among which the machine chooses (see `suite`)."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._candidates: dict[str, list[Candidate]] = {}
        for candidate in candidates:
            self._candidates.setdefault(candidate.op, []).append(candidate)
        self._suites = dict.fromkeys(candidate.name for candidate in candidates if candidate.suite)
        self._on_demand = {
            candidate.name for candidate in candidates if candidate.suite and candidate.on_demand
        }

    def suite(self, keys: Sequence[OpKey], facts: Facts, force: str | None = None) -> SuiteChoice:
        """The first suite whose candidates accept every key. With `force`, only the suite of that name may.

        Suites of the machine take turns in its own order, that of `facts["kernels"]`.
        """
        refused: list[tuple[str, str]] = []
        here = facts.get("kernels", ())
        assert isinstance(here, tuple)
        ranked = (name for name in here if name in self._suites)
        for name in [next(ranked) if name in here else name for name in self._suites]:
            reason = self._suite_refusal(name, keys, facts, force)
            if reason is None:
                return SuiteChoice(name, tuple(refused))
            if name not in self._on_demand or name == force:
                refused.append((name, reason))
        return SuiteChoice(None, tuple(refused))

    def _suite_refusal(self, name: str, keys: Sequence[OpKey], facts: Facts, force: str | None) -> str | None:
        if force not in (None, name):
            return f"{force} was asked for"
        if name in self._on_demand and force is None:
            return "taken only where it is asked for"
        for key in keys:
            member = next((c for c in self._candidates.get(key.op, ()) if c.suite and c.name == name), None)
            if member is None:
                return f"has no {key.op}"
            reason = member.accepts(key, facts)
            if reason is not None:
                return reason
        return None

    def choose(
        self, key: OpKey, facts: Facts, force: str | None = None, suite: SuiteChoice | None = None
    ) -> Choice:
        """The first candidate that accepts `key`; a candidate named `force` goes first and must accept.

        A suite serves only as `suite` says; without it the suite is chosen for this key alone.
        Raises ConfigError if the forced candidate refuses, or if none accepts.
        """
        chosen = suite or self.suite([key], facts, force)
        reasons = dict(chosen.refused)
        candidates = self._candidates.get(key.op, [])
        forced = [candidate for candidate in candidates if candidate.name == force]
        refused: list[tuple[str, str]] = []
        for candidate in forced or candidates:
            if candidate.suite:
                if candidate.name == chosen.name:
                    return Choice(key, candidate, tuple(refused))
                reason: str | None = reasons.get(candidate.name, f"{chosen.name} serves")
            else:
                reason = candidate.accepts(key, facts)
            if reason is None:
                return Choice(key, candidate, tuple(refused))
            if not candidate.on_demand or candidate.name == force:
                refused.append((candidate.name, reason))
        why = "; ".join(f"{name}: {reason}" for name, reason in refused) or "there is no candidate"
        raise ConfigError(f"no {key.op} for {key.dtype} {key.format} weights on {key.device} ({why})")

    def select(
        self,
        *,
        device: str,
        dtype: str,
        formats: Sequence[str] = (DENSE,),
        facts: Facts | None = None,
        force: str | None = None,
    ) -> Selection:
        """Choose every op once. `force` names a candidate to prefer for every op that has one of that name.

        Raises ConfigError as `choose` does, and if no op has a candidate named `force`.
        """
        names = {candidate.name for group in self._candidates.values() for candidate in group}
        if force is not None and force not in names:
            raise ConfigError(f"no op is implemented by {force!r}; there are {', '.join(sorted(names))}")
        known = facts or {}
        keys = op_keys(device, dtype, formats)
        suite = self.suite(keys, known, force)
        return Selection(suite.name, tuple(self.choose(key, known, force, suite) for key in keys))

    def bind(
        self,
        *,
        device: str,
        dtype: str,
        formats: Sequence[str] = (DENSE,),
        facts: Facts | None = None,
        force: str | None = None,
    ) -> Ops:
        """`select`, and import what was chosen."""
        return self.select(device=device, dtype=dtype, formats=formats, facts=facts, force=force).load()


def op_keys(device: str, dtype: str, formats: Sequence[str] = (DENSE,)) -> tuple[OpKey, ...]:
    """Every op that a model needs: plain ones once, weight ops for each format."""
    plain = [OpKey(op, device, dtype) for op in PLAIN_OPS]
    return (*plain, *(OpKey(op, device, dtype, name) for op in WEIGHT_OPS for name in formats))
