"""`speculative="auto"` takes what there is for a model, and says why."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM, SamplingParams
from headrace.build import survey
from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.models.mtp import find_mtp
from tests import tiny_mtp
from tests.places import BUNDLED, TALE
from tests.tiny_checkpoint import CONFIGS, write


def chosen(model: str, **options: object) -> tuple[str | None, str]:
    resolved = survey(EngineConfig.from_kwargs(model=model, speculative="auto", **options)).resolved
    return resolved.speculative, dict(resolved.reasons)["speculative"]


def test_a_bundled_model_has_its_drafter() -> None:
    assert chosen("tale") == ("ngram,tale-draft", "tale-draft is bundled for this model")
    assert chosen(str(TALE))[0] == "ngram,tale-draft"


def test_a_model_without_anything_gets_ngrams() -> None:
    found, why = chosen("shape:tiny")
    assert found == "ngram" and "only n-grams" in why


def test_a_draft_in_the_models_folder_is_taken(tmp_path: Path) -> None:
    write(tmp_path, CONFIGS["mistral"])
    assert chosen(str(tmp_path))[0] == "ngram"
    (tmp_path / "draft").mkdir()
    write(tmp_path / "draft", CONFIGS["mistral"])
    found, why = chosen(str(tmp_path))
    assert found == f"ngram,{tmp_path / 'draft'}" and "the model's folder" in why


def test_the_layer_of_a_checkpoint_is_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def count(*args: Any) -> Any:
        calls.append(args)
        return find_mtp(*args)

    for module in ("headrace.speculative.drafters", "headrace.speculative.auto"):
        monkeypatch.setattr(f"{module}.find_mtp", count)
    model = tiny_mtp.write(tmp_path / "model", "deepseek")
    assert chosen(str(model))[0] == "ngram,mtp" and len(calls) == 1


def test_a_draft_whose_path_would_be_read_as_two_names(tmp_path: Path) -> None:
    for folder in (tmp_path / "a,b", tmp_path / "a,b" / "draft"):
        folder.mkdir()
        write(folder, CONFIGS["mistral"])
    found, why = chosen(str(tmp_path / "a,b"))
    assert found == "ngram" and "comma" in why


def test_heads_in_the_models_folder_are_taken_and_must_fit(tmp_path: Path) -> None:
    shutil.copytree(TALE, tmp_path / "model")
    shutil.copytree(BUNDLED / "tale-medusa", tmp_path / "model" / "draft")
    options = {"num_threads": 1, "show_progress": False}
    params = SamplingParams(temperature=0.0, max_tokens=30)
    (expected,) = LLM("tale", **options).generate("Once", params)
    llm = LLM(str(tmp_path / "model"), speculative="auto", adaptive_speculation=False, **options)
    (found,) = llm.generate("Once", params)
    assert (
        found.outputs[0].token_ids == expected.outputs[0].token_ids and found.metrics.num_accepted_tokens > 5
    )


def test_it_stands_alone() -> None:
    with pytest.raises(ConfigError, match="auto chooses by itself"):
        EngineConfig("tale", speculative="ngram,auto")


def test_a_checkpoints_own_layer_comes_first(tmp_path: Path) -> None:
    assert chosen(str(tiny_mtp.write(tmp_path / "model", "deepseek")))[0] == "ngram,mtp"
