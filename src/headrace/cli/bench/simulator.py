"""The benchmark of the simulator itself."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.cli.bench.kind import Flags, Kind, Prepared
from headrace.cli.parser import add_number
from headrace.cli.planning.workload_flags import (
    add_burst_flags,
    add_workload_flags,
    check_workload,
    describe_lengths,
    workload_of,
)
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.model.latency import Progress
    from headrace.bench.report import Row


def _flags(parser: Flags) -> None:
    parser.add_argument(
        "--model", "-m", default="shape:llama-3.1-8b", metavar="NAME", help="default: %(default)s"
    )
    parser.add_argument(
        "--hardware",
        default="h100",
        metavar="NAME",
        help="as `headrace simulate` takes it (default: %(default)s)",
    )
    parser.add_argument(
        "--request-rate", nargs="+", default=["1", "4", "16"], metavar="R",
        help="requests a second: one or several rates (default: 1 4 16)",
    )  # fmt: skip
    add_workload_flags(parser, num_prompts=5000)
    add_burst_flags(parser)
    add_number(parser, "--replicas", 1, "engines behind a router")


def _prepare(args: argparse.Namespace) -> Prepared:
    from headrace.bench.simulator import simulator_rows
    from headrace.config import EngineConfig
    from headrace.plan.hardware_table import find_hardware
    from headrace.sim.simulate.deploy import deploy
    from headrace.sim.simulate.load import Load, Service
    from headrace.sim.workload.arrivals import Arrivals, parse_rates

    check_workload(args)
    rates = parse_rates(args.request_rate)
    if any(map(math.isinf, rates)) or not 1 <= args.replicas <= 1024:
        raise ConfigError("the simulator is measured at finite rates, with 1 to 1024 replicas")
    deployment = deploy(EngineConfig(args.model), find_hardware(args.hardware))
    workload = workload_of(args).within(deployment.max_model_len)
    load = Load(workload, Arrivals(1.0, args.burstiness, args.burst_size), args.num_prompts)

    def rows(progress: Progress) -> Iterator[Row]:
        return simulator_rows(Service(deployment, args.replicas), load, rates, progress)

    head = [deployment.describe(), describe_lengths(workload)]
    return Prepared(rows, len(rates), {"model": args.model, "hardware": deployment.hardware}, head=head)


SIMULATOR_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "simulator": Kind(
            summary="how fast `headrace simulate` is, and what memory it takes",
            description="Simulates one load at several rates, and compares simulated time with the CPU time of this "
            "process. Memory is that of the whole process.",
            examples=(
                "",
                " --request-rate 11.574 --num-prompts 1000000",
                " --hardware l4 --model shape:smollm2-135m --replicas 4",
            ),
            add_flags=_flags,
            prepare=_prepare,
            columns=(
                "answered", "simulated_s", "cpu_s", "wall_s", "times_real", "steps_per_s", "simulated_per_s",
                "peak_rss_bytes",
            ),
            options=("dataset_name", "num_prompts", "replicas", "request_rate"),
            takes_repeats=False,
            takes_model=False,
        )
    }
)  # fmt: skip
