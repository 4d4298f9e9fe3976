"""A model of the hub as people type it: `owner/name`, then `:QUANTISATION` and `@REVISION`, either or both.

As llama.cpp's `-hf owner/name:Q4_K_M`; the revision is a branch, a tag or a commit. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_REPOSITORY = r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
_TAG = r"(?::(?P<tag>[A-Za-z0-9][\w.+/-]*))?"
_REVISION = r"(?:@(?P<revision>[A-Za-z0-9][\w./+-]*))?"
_FORMS = (
    re.compile(f"{_REPOSITORY}{_TAG}{_REVISION}", re.ASCII),
    re.compile(f"{_REPOSITORY}{_REVISION}{_TAG}", re.ASCII),
)
_MAX_CHARS = 512


@dataclass(frozen=True, slots=True)
class Reference:
    """`tag`: a quantisation, or the name of a GGUF file, in any case; None: the default. `revision` None: main."""

    repository: str
    tag: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        tag = "" if self.tag is None else f":{self.tag}"
        return f"{self.repository}{tag}" + ("" if self.revision is None else f"@{self.revision}")


def parse_reference(text: str) -> Reference | None:
    """The reference that `text` is, or None where it is none."""
    if len(text) > _MAX_CHARS:
        return None
    for form in _FORMS:
        if match := form.fullmatch(text):
            parts = (match["repository"], match["tag"] or "", match["revision"] or "")
            # The revision becomes a path in the cache. The hub allows neither ".." nor "--" in a repository's name.
            if any(".." in part for part in parts) or "--" in match["repository"]:
                return None
            return Reference(match["repository"], match["tag"], match["revision"])
    return None
