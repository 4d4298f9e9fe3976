"""Engines on several devices: what each device keeps, and models that they cannot share."""

from __future__ import annotations

import pytest

from headrace.config import EngineConfig
from headrace.errors import ConfigError, DoesNotFit
from headrace.plan.hardware_table import find_hardware
from headrace.plan.ledger import ledger
from headrace.sim.planner.formats import store
from headrace.sim.planner.memory import Footprint, Placement
from headrace.sim.planner.model import open_model
from headrace.sim.simulate.deploy import MOST_BLOCKS, MOST_REPLICAS, deploy
from headrace.sim.simulate.load import Load, Service
from headrace.sim.workload.arrivals import Arrivals
from headrace.sim.workload.sessions import Workload


@pytest.mark.parametrize(("model", "copies"), [("shape:deepseek-v2-lite", 4), ("shape:llama-2-7b", 1)])
def test_each_device_keeps_all_latents_and_its_part_of_the_heads(model: str, copies: int) -> None:
    hardware = find_hardware("4xl4")
    deployment = deploy(EngineConfig(model, max_num_seqs=64), hardware)
    spec = deployment.cost.work.spec
    assert spec is not None
    planned = ledger(spec, deployment.resolved)
    free = 0.9 * hardware.total_memory - planned.weight_bytes - planned.activation_bytes
    assert 0.88 * free < copies * planned.kv_pool_bytes <= free


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("shape:deepseek-v2-lite", "3xl4 cannot share the 16 heads of this model evenly"),
        ("shape:smollm2-360m", "3xl4 cannot share the 5 KV heads of this model evenly"),
    ],
)
def test_heads_that_devices_cannot_share_are_refused(model: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        deploy(EngineConfig(model), find_hardware("3xl4"))


def test_more_replicas_than_memory_holds_are_refused() -> None:
    load = Load(Workload(), Arrivals(), 1)
    wide = deploy(EngineConfig("shape:smollm2-135m", num_kv_blocks=131_072), find_hardware("b200"))
    assert 1 < wide.most_replicas < MOST_REPLICAS and wide.most_replicas * 131_072 <= MOST_BLOCKS
    Service(wide, wide.most_replicas).simulation(load)
    with pytest.raises(ConfigError, match=rf"take up to {wide.most_replicas}, or fewer blocks"):
        Service(wide, wide.most_replicas + 1).simulation(load)
    small = deploy(EngineConfig("shape:smollm2-135m", num_kv_blocks=1000), find_hardware("b200"))
    assert small.most_replicas == MOST_REPLICAS


def test_sizes_that_count_what_fewer_bits_save_say_so() -> None:
    """Memory of 136 GiB is no device's."""
    config = EngineConfig(
        "shape:llama-3.1-70b", quantization="int4-a16", max_num_seqs=8, max_model_len=131_072
    )
    with pytest.raises(
        DoesNotFit, match=r"of 136 GiB .* both count the 96\.\d GiB that fewer bits save on NVIDIA L40S"
    ):
        deploy(config, find_hardware("l40s"))
    plain = EngineConfig("shape:llama-2-13b", max_num_seqs=8)
    with pytest.raises(DoesNotFit) as refused:
        deploy(plain, find_hardware("l4"))
    assert "fewer bits" not in str(refused.value)


@pytest.mark.parametrize(("name", "fits"), [("t4", False), ("l4", True)])
def test_what_a_plan_says_does_not_fit_is_not_simulated(name: str, fits: bool) -> None:
    """The 16 GB of a T4 hold the weights of 7.2B parameters, and not what else a GPU needs."""
    model, hardware = open_model("shape:mistral-7b"), find_hardware(name)
    planned = Footprint(store(model, hardware), hardware, Placement())
    assert planned.fits(1, 512) is fits and planned.weights < hardware.memory
    config = EngineConfig(model.name, max_num_seqs=1, max_model_len=512)
    if fits:
        assert deploy(config, hardware).settings["kv_cache_memory"] <= planned.room(1)
    else:
        with pytest.raises(DoesNotFit):
            deploy(config, hardware)
