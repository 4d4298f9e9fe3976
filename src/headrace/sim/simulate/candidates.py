"""What a search for the cheapest setting tries: formats of weights and tensor parallel degrees, on machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.plan.hardware import Hardware
from headrace.sim.planner.formats import AS_STORED, formats_of
from headrace.sim.simulate.deploy import Deployment, deploy


@dataclass(frozen=True, slots=True)
class Candidate:
    """Engines on machines of one kind, each on `tp` devices that share every layer.

    format: as `--quantization` takes it, or AS_STORED. price: of one machine, an hour.
    """

    machine: Hardware
    tp: int
    format: str
    deployment: Deployment
    price: float

    @property
    def copies(self) -> int:
        """Engines on one machine."""
        return self.machine.count // self.tp

    @property
    def engine(self) -> tuple[str, int, str]:
        """Equal for candidates whose engines are the same, on whatever machines they stand."""
        return (self.machine.name, self.tp, self.format)

    @property
    def weight_bytes(self) -> int:
        """Of one engine: what a step reads at most."""
        work = self.deployment.cost.work
        return work.layer_bytes + work.head_bytes

    @property
    def format_label(self) -> str:
        """The format as people know it."""
        memory = self.deployment.cost.work.memory
        if self.format != AS_STORED or memory is None:
            return self.format
        return memory.dtype if memory.weights is None else memory.weights.main.name

    def describe(self) -> str:
        """In a few words, without the model."""
        return _describe(self.format_label, self.machine, self.tp)


@dataclass(frozen=True, slots=True)
class Refused:
    """What cannot be deployed, in words, and why."""

    name: str
    machine: Hardware
    error: ConfigError


def find_candidates(
    config: EngineConfig,
    machines: Sequence[Hardware],
    prices: Mapping[str, float],
    formats: Sequence[str] | None = None,
) -> tuple[list[Candidate], list[Refused]]:
    """All candidates, and what cannot be deployed. formats: None for the one that `config` names, if it names one, else
    for those that a plan tries on such a machine.

    prices: of each machine's label. Raises ModelError where there is no such model, and ConfigError for a format that
    there is not.
    """
    found: list[Candidate] = []
    refused: list[Refused] = []
    known: dict[tuple[str, str], Deployment | ConfigError] = {}
    given = (config.quantization,) if config.quantization is not None else None
    asked = {machine: given or formats_of(machine, formats) for machine in machines}
    for machine in machines:
        for tp in (count for count in range(1, machine.count + 1) if machine.count % count == 0):
            devices = machine.times(tp)
            for format in asked[machine]:
                name = _describe(format, machine, tp)
                key = (devices.label, format)
                if key not in known:
                    known[key] = _deploy(config, devices, format)
                one = known[key]
                if isinstance(one, ConfigError):
                    refused.append(Refused(name, machine, one))
                else:
                    found.append(Candidate(machine, tp, format, one, prices[machine.label]))
    return found, refused


def _deploy(config: EngineConfig, devices: Hardware, format: str) -> Deployment | ConfigError:
    try:
        return deploy(replace(config, quantization=None if format == AS_STORED else format), devices)
    except ConfigError as error:
        return error


def _describe(format: str, machine: Hardware, tp: int) -> str:
    placed = f", TP {tp}" if tp > 1 else ""
    return f"{format} on {machine.label}{placed}"
