"""Configs in the form in which models are published say to us what they say to transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.models.families import read_spec
from headrace.models.spec import ModelSpec
from tests import needs
from tests.conformance.published_configs import PUBLISHED

transformers = needs.lazily("transformers")


def of_the_model(config: dict[str, Any]) -> ModelSpec:
    """Token ids are those of the tokenizer, where a config names none."""
    return replace(read_spec(config), bos_id=None, eos_ids=())


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_transformers_makes_of_it(name: str) -> None:
    published = PUBLISHED[name]
    kind = transformers.CONFIG_MAPPING[published["model_type"]]
    filled_in = kind.from_dict(json.loads(json.dumps(published))).to_json_string(use_diff=False)
    stated = {**json.loads(filled_in), "architectures": published["architectures"]}
    assert stated.keys() - published.keys()
    assert of_the_model(published) == of_the_model(stated)
