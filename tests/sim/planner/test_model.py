"""Models to plan for of which only the config is at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.plan.hardware_table import find_hardware
from headrace.sim.planner.data import plan_data
from headrace.sim.planner.model import open_model
from headrace.sim.planner.overview import Question, make_overview
from headrace.sim.planner.report import plan_report
from headrace.sim.planner.speed import Traffic

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


def folder(tmp_path: Path, quantization: dict[str, Any] | None) -> str:
    """A folder with a config.json and no weights."""
    extra = {} if quantization is None else {"quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | extra))
    return str(tmp_path)


def test_a_plan_says_that_codes_were_not_sized(tmp_path: Path) -> None:
    model = open_model(folder(tmp_path, {"quant_method": "gptq", "bits": 4, "group_size": 128}))
    overview = make_overview(Question((model,), (find_hardware("h100"),), Traffic(64, 64)))
    assert model.unsized == "gptq" and plan_data(overview)["model"]["unsized_codes"] == "gptq"
    assert "codes of gptq, whose files are not here" in plan_report(overview)


def test_floats_without_files_are_planned_as_they_are(tmp_path: Path) -> None:
    assert open_model(folder(tmp_path, None)).unsized == ""


@pytest.mark.parametrize(
    ("quantization", "complaint"),
    [
        ({"quant_method": "gptq", "bits": -4, "group_size": 128}, "bits"),
        ({"quant_method": "nosuch"}, "'nosuch', which is not supported"),
        ({"quant_method": "awq", "bits": 99, "group_size": 128}, "bits"),
    ],
)
def test_codes_that_cannot_be_are_refused_without_the_files(
    tmp_path: Path, quantization: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(HeadraceError, match=complaint):
        open_model(folder(tmp_path, quantization))
