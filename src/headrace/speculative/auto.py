"""What `speculative="auto"` drafts with: the best that is there for a model without asking for more."""

from __future__ import annotations

from headrace.errors import ConfigError, ModelError
from headrace.models.mtp import find_mtp
from headrace.models.source import BUNDLED_FOLDER, ModelSource
from headrace.models.spec import ModelSpec
from headrace.plan.draft_methods import MTP, NGRAM

DRAFT_FOLDER = "draft"
"""Of a model's folder: a smaller model, or heads for it."""
BUNDLED_DRAFTERS = {"tale": "tale-draft"}


def found_drafters(source: ModelSource, spec: ModelSpec) -> tuple[str, str]:
    """The option `speculative`, and why it is that.

    A checkpoint's own layer comes first, then the folder `draft` inside the model's, then what is bundled. N-grams
    stand before each, and are alone where there is nothing else.
    """
    try:
        find_mtp(source, spec)
    except (ConfigError, ModelError):
        pass
    else:
        return f"{NGRAM},{MTP}", "the checkpoint brings a layer that predicts further tokens"
    folder = source.path
    if folder is not None and (folder / DRAFT_FOLDER / "config.json").is_file():
        if "," in str(folder):
            return (
                NGRAM,
                f"the path of the folder {DRAFT_FOLDER} holds a comma, which stands between drafters",
            )
        return f"{NGRAM},{folder / DRAFT_FOLDER}", f"the model's folder has one named {DRAFT_FOLDER}"
    if folder is not None and folder.parent == BUNDLED_FOLDER and folder.name in BUNDLED_DRAFTERS:
        name = BUNDLED_DRAFTERS[folder.name]
        return f"{NGRAM},{name}", f"{name} is bundled for this model"
    return NGRAM, "there is no layer, head or smaller model for this one: only n-grams"
