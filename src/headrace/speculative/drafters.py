"""What drafts for a model, by the option `speculative`, before any weight is read. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ModelNotFound
from headrace.models.draft_layers import DraftLayers
from headrace.models.mtp import find_mtp
from headrace.models.rope import with_context
from headrace.models.safetensors_reader import Checkpoint
from headrace.models.source import HubOptions, ModelSource, resolve_model
from headrace.models.spec import ModelSpec
from headrace.models.stored import StoredWeights, open_source, stored_spec
from headrace.plan.draft_methods import AUTO, LOOK_UPS, MTP, draft_model_name
from headrace.plan.drafts import DraftHeads
from headrace.speculative.auto import found_drafters
from headrace.speculative.base_model import BaseModel
from headrace.speculative.eagle_layers import eagle_layers
from headrace.speculative.heads import BUNDLED_HEADS, check_sizes, describe_heads, heads_folder, is_heads


@dataclass(frozen=True, slots=True)
class Drafters:
    """option: names of drafters as in `EngineConfig.speculative`, what `auto` found in its place; why: it found these,
    None without `auto`. source: the model that drafts, or the folder of heads.

    One of the next three is there at most, none where tokens are looked up or nothing drafts: spec: of the model that
    drafts; heads; layers: on the model's states, whose tensors are in `files`.
    """

    option: str | None = None
    why: str | None = None
    source: ModelSource | Path | None = None
    spec: ModelSpec | None = None
    heads: DraftHeads | None = None
    layers: DraftLayers | None = None
    files: StoredWeights | None = None


def find_drafters(
    option: str | None,
    source: ModelSource,
    spec: ModelSpec,
    *,
    max_model_len: int | None = None,
    download_dir: str | None = None,
) -> Drafters:
    """What drafts for the model `source`, whose spec this is. The options are those of EngineConfig: `speculative`
    first.

    Raises ConfigError and ModelError where there is no such drafter, or it is none for this model.
    """
    why, mtp = None, None
    if option == AUTO:
        found = found_drafters(source, spec)
        option, why, mtp = found.drafters, found.why, found.mtp
    name = draft_model_name(option)
    if name is None:
        return Drafters(option, why)
    if name == MTP:
        layers, files = mtp or find_mtp(source, spec)
        return Drafters(option, why, layers=layers, files=files)
    if is_heads(name):
        folder = heads_folder(name)
        check_sizes(folder, BaseModel(source.name, spec.vocab_size, spec.hidden_size))
        eagle = eagle_layers(folder, spec)
        if eagle is None:
            return Drafters(option, why, folder, heads=describe_heads(folder))
        return Drafters(option, why, folder, layers=eagle, files=StoredWeights(Checkpoint(folder)))
    try:
        draft = open_source(resolve_model(name, HubOptions(download_dir=download_dir)))
    except ModelNotFound as error:
        others = ", ".join((AUTO, *LOOK_UPS, MTP, *BUNDLED_HEADS))
        raise ModelNotFound(f"{error}; speculative also takes {others} and folders of heads") from error
    return Drafters(option, why, draft, with_context(stored_spec(draft), max_model_len))
