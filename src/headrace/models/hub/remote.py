"""Asks the hub what a repository holds, and says in one sentence why that failed.

The endpoint, offline mode and the cache's folder are read from the environment at each call: huggingface_hub reads
them when it is first imported, perhaps before the caller set them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace import __version__
from headrace.models.hub.files import is_safe
from headrace.models.hub.reference import Reference

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT_S = 10.0
"""Seconds of silence after which a request to the hub counts as failed."""

_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_OFFLINE = "HF_HUB_OFFLINE is set"


class HubFailure(Exception):
    """Why the hub does not give a model, as the end of "hub model NAME …".

    away: the hub itself is out of reach, not the model; `why` is then a sentence of its own. lasting: no cached copy
    may stand in for the model.
    """

    def __init__(self, why: str, *, away: bool = False, lasting: bool = False) -> None:
        super().__init__(f"cannot be fetched: {why}" if away else why)
        self.why, self.away, self.lasting = why, away, lasting


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository: its size in bytes, and its digest: SHA-256, or git's SHA-1 of small files. None:
    unknown."""

    name: str
    size: int | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository holds at one commit; `files` by name, those with safe names only."""

    repository: str
    commit: str
    files: Mapping[str, RemoteFile]


def is_offline() -> bool:
    """HF_HUB_OFFLINE is set."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def endpoint() -> str | None:
    """The hub's address where HF_ENDPOINT names another than huggingface_hub's."""
    return (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None


def cache_folder(chosen: str | None = None) -> Path:
    """The folder of the hub's cache: the one that the option names, else the environment's, else the hub's
    default."""
    # os.path answers where the methods of Path raise: a user without a home folder.
    if chosen is not None:
        return Path(os.path.expanduser(chosen)).resolve()
    if cache := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(os.path.expanduser(os.path.expandvars(cache))).resolve()
    home = os.environ.get("HF_HOME")
    if not home:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        home = os.path.join(base, "huggingface")  # noqa: PTH118, expanded below
    return Path(os.path.expanduser(os.path.expandvars(home)), "hub").resolve()


def api() -> HfApi:
    """The hub's client."""
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint(), library_name="headrace", library_version=__version__)


def list_files(reference: Reference) -> Listing:
    """The files of a repository at its revision: one request. Raises HubFailure."""
    if is_offline():
        raise HubFailure(_OFFLINE, away=True)
    try:
        info = api().model_info(
            reference.repository, revision=reference.revision, files_metadata=True, timeout=TIMEOUT_S
        )
        listed = [(file.rfilename, file.size, file.lfs, file.blob_id) for file in info.siblings or ()]
        commit = info.sha
    except (
        Exception
    ) as error:  # its HTTP clients, which change with its version, have no common base exception
        raise failure(error, reference.revision) from error
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise HubFailure("is described without a commit: is HF_ENDPOINT the address of a hub?")
    files = {}
    for name, size, lfs, blob in listed:
        if isinstance(name, str) and is_safe(name):
            digest = blob if lfs is None else lfs.sha256
            known = isinstance(digest, str) and _DIGEST.fullmatch(digest)
            counted = isinstance(size, int) and not isinstance(size, bool) and size >= 0
            files[name] = RemoteFile(name, size if counted else None, digest if known else None)
    return Listing(reference.repository, commit, MappingProxyType(files))


def failure(error: Exception, revision: str | None = None) -> HubFailure:
    """What an exception of huggingface_hub, or of the HTTP client under it, means."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, RevisionNotFoundError):
        return HubFailure(f"has no revision {revision or 'main'!r:.200}", lasting=True)
    if isinstance(error, GatedRepoError):
        return HubFailure("is gated: accept its terms on its page, then run `hf auth login`")
    if isinstance(error, RepositoryNotFoundError):
        return HubFailure("is not there, or not public: check the name, or run `hf auth login`")
    if isinstance(error, OfflineModeIsEnabled):
        return HubFailure(_OFFLINE, away=True)
    if isinstance(error, LocalEntryNotFoundError):
        return HubFailure(f"the hub cannot be reached ({first_line(error.__cause__ or error)})", away=True)
    if isinstance(error, HfHubHTTPError):
        return _status_failure(error.response.status_code)
    if isinstance(error, HFValidationError):
        return HubFailure("is not there: the hub allows no such name")
    if isinstance(error, (ValueError, TypeError, KeyError, AttributeError)):
        return HubFailure(
            f"is described in another way than a hub does ({first_line(error)}): is HF_ENDPOINT right?"
        )
    return HubFailure(f"the hub cannot be reached ({first_line(error)})", away=True)


def _status_failure(status: int) -> HubFailure:
    if status in (401, 403):
        return HubFailure(
            f"may not be read with the token of this machine, or without one (status {status}): run `hf auth login`"
        )
    if status == 404:
        return HubFailure("is not there: check the name")
    if status == 429:
        return HubFailure("the hub limits how often it is asked; try again later", away=True)
    if status >= 500:
        return HubFailure(f"the hub has a fault of its own (status {status}); try again later", away=True)
    return HubFailure(f"the hub answers with status {status}", away=True)


def first_line(error: BaseException) -> str:
    """What an exception says, in at most one line of 200 characters; its type where it says nothing."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return (text or type(error).__name__)[:200]
