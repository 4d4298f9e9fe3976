"""What `speculative="auto"` drafts with: the best that is there for a model without asking for more."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigError, ModelError
from headrace.models.draft_layers import DraftLayers
from headrace.models.mtp import find_mtp
from headrace.models.source import BUNDLED_FOLDER, ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.stored import StoredWeights
from headrace.plan.draft_methods import MTP, NGRAM

DRAFT_FOLDER = "draft"
"""Of a model's folder: a smaller model, or heads for it."""
BUNDLED_DRAFTERS = {"tale": "tale-draft"}


@dataclass(frozen=True, slots=True)
class Found:
    """The option `speculative`, why it is that, and the checkpoint's own layer where it takes that."""

    drafters: str
    why: str
    mtp: tuple[DraftLayers, StoredWeights] | None = None


def found_drafters(source: ModelSource, spec: ModelSpec) -> Found:
    """What is there for a model.

    A checkpoint's own layer comes first, then the folder `draft` inside the model's, then what is bundled. N-grams
    stand before each, and are alone where there is nothing else.
    """
    try:
        mtp = find_mtp(source, spec)
    except (ConfigError, ModelError):
        pass
    else:
        return Found(f"{NGRAM},{MTP}", "the checkpoint has a layer that predicts further tokens", mtp)
    folder = source.path
    if folder is not None and (folder / DRAFT_FOLDER / "config.json").is_file():
        if "," in str(folder):
            return Found(
                NGRAM,
                f"the path of the folder {DRAFT_FOLDER} holds a comma, which stands between drafters",
            )
        return Found(f"{NGRAM},{folder / DRAFT_FOLDER}", f"the model's folder has one named {DRAFT_FOLDER}")
    if folder is not None and folder.parent == BUNDLED_FOLDER and folder.name in BUNDLED_DRAFTERS:
        name = BUNDLED_DRAFTERS[folder.name]
        return Found(f"{NGRAM},{name}", f"{name} is bundled for this model")
    return Found(NGRAM, "there is no layer, head or smaller model for this one: only n-grams")
