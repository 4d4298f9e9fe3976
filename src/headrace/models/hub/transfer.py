"""Brings one file of a repository into the hub's cache: resumed where it stopped, also by another process, and
verified.

huggingface_hub speaks HTTP and keeps the cache's layout. From its version 2 on it discards what it received before a
process ended, so here the bytes of a file go to `blobs/DIGEST.incomplete`, where it kept them before.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ModelError
from headrace.models.hub.remote import TIMEOUT_S, HubFailure, Listing, RemoteFile, endpoint, failure

ATTEMPTS = 4
"""Requests in a row that bring no new byte of a file, after which its download has failed."""

PAUSE_S = 0.5
"""Before the second of these requests; twice as long before each further one."""

MAX_PLAIN_BYTES = 50 * 10**9
"""Above this the hub sends a file only through its client for Xet storage."""

_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class Stopped(Exception):
    """The download was ended from outside: another file of it failed, or Ctrl-C was pressed."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where files go, what is called with the number of bytes that came (negative: they are fetched again), and
    what ends the download of all files."""

    listing: Listing
    cache: Path
    advance: Callable[[int], None]
    stop: threading.Event

    @property
    def folder(self) -> Path:
        """Of the repository."""
        return repository_folder(self.cache, self.listing.repository)

    @property
    def snapshot(self) -> Path:
        return self.folder / "snapshots" / self.listing.commit


def repository_folder(cache: Path, repository: str) -> Path:
    """In huggingface_hub's layout."""
    return cache / f"models--{repository.replace('/', '--')}"


def is_there(target: Target, file: RemoteFile) -> bool:
    """Whether the snapshot has the file, in its full size."""
    try:
        size = (target.snapshot / file.name).stat().st_size
    except OSError:
        return False
    return file.size is None or size == file.size


def fetch_file(target: Target, file: RemoteFile) -> None:
    """Bring the file into the snapshot.

    Raises HubFailure where the hub does not send it, ModelError where it cannot be stored or is not what the hub
    lists, and Stopped.
    """
    if is_there(target, file):
        return
    if target.stop.is_set():
        raise Stopped
    try:
        with _storing(target, file):
            for again in (False, True):
                _remove_cut(target, target.snapshot / file.name)
                if _fetch_file(target, file):
                    break
                if again:
                    _remove_cut(target, target.snapshot / file.name)
                    raise _changed(target, file)
    except (HubFailure, ModelError, Stopped):
        raise
    except Exception as error:  # see remote.list_files
        raise failure(error) from error
    if not is_there(target, file):
        raise wrong_size(file)


def _fetch_file(target: Target, file: RemoteFile) -> bool:
    """Put the file into the snapshot; False where it has other bytes than the hub lists."""
    from huggingface_hub import hf_hub_download

    verified = _fetch_blob(target, file)
    path = hf_hub_download(
        target.listing.repository, file.name, revision=target.listing.commit, cache_dir=target.cache,
        endpoint=endpoint(),
    )  # fmt: skip
    return verified or file.digest is None or _is_intact(Path(path), file.digest)


def _fetch_blob(target: Target, file: RemoteFile) -> bool:
    """Put the file's content under its ETag, where hf_hub_download finds it and makes the link; False where that has to
    fetch it, which compares no digest."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    listing = target.listing
    url = hf_hub_url(listing.repository, file.name, revision=listing.commit, endpoint=endpoint())
    metadata = get_hf_file_metadata(url, timeout=TIMEOUT_S)
    size = file.size if file.size is not None else metadata.size
    if size is None or size > MAX_PLAIN_BYTES or metadata.etag is None or not _ETAG.fullmatch(metadata.etag):
        return False  # hf_hub_download fetches it, in one go
    blobs = target.folder / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    blob = blobs / metadata.etag
    if blob.exists() and blob.stat().st_size != size:  # cut short
        blob.unlink()
    with _locked_part(blob) as part:
        if part is None:  # another process brought it
            return True
        part.limit(target, size)
        for again in (False, True):
            _receive(target, file, part, url, size)
            part.flush()
            if _is_intact(part.path, file.digest or metadata.etag):
                os.fsync(part.fileno())
                part.path.replace(blob)
                return True
            part.truncate(0)  # it began as a part of something else, or was damaged on the way
            if again:
                raise _changed(target, file)
    raise AssertionError("the second time returns or raises")


def _receive(target: Target, file: RemoteFile, part: _Part, url: str, size: int) -> None:
    """The rest of the file, over as many requests as it takes.

    Each asks the hub itself: the address that it redirects to is signed, and valid for a time only.
    """
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    failed = 0
    while part.tell() < size:
        before = part.tell()
        why: Exception
        try:
            http_get(
                url, part, resume_size=before, headers=build_hf_headers(library_name="headrace"), expected_size=size,
                displayed_filename=file.name,
            )  # fmt: skip
            continue
        except (Stopped, HubFailure):
            raise
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            full = isinstance(error, OSError) and error.errno in (*_FULL, *_FORBIDDEN)
            if full or (status is not None and status < 500):
                raise
            why = error
        failed = 1 if part.tell() > before else failed + 1
        if failed == ATTEMPTS:
            if getattr(why, "response", None) is not None:
                raise why
            raise HubFailure(
                f"the connection ended {failed} times at byte {part.tell()} of {file.name:.200}; the same command goes "
                "on from there",
                away=True,
            ) from why
        if target.stop.wait(PAUSE_S * 2 ** (failed - 1)):
            raise Stopped


class _Part(io.BufferedRandom):
    """An unfinished file. Reports what is written to it, and ends the writing past its size and once that was
    stopped."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        super().__init__(io.FileIO(os.open(path, flags, 0o666), "r+"))
        self.path = path
        self._target: Target | None = None
        self._size = 0

    def limit(self, target: Target, size: int) -> None:
        """Write after what is there, up to `size` bytes in all."""
        if self.seek(0, os.SEEK_END) > size:
            self.truncate(0)
        self._target, self._size = target, size
        target.advance(self.tell())

    def write(self, chunk: Any, /) -> int:
        if self._target is not None:
            if self._target.stop.is_set():
                raise Stopped
            if self.tell() + len(chunk) > self._size:
                raise HubFailure(f"sends more bytes of a file than it lists, {self._size}")
            self._target.advance(len(chunk))
        return super().write(chunk)

    def truncate(self, size: int | None = None, /) -> int:
        self.flush()
        before = os.fstat(self.fileno()).st_size
        left = self.seek(super().truncate(size))
        if self._target is not None:
            self._target.advance(left - before)
        return left


@contextmanager
def _locked_part(blob: Path) -> Iterator[_Part | None]:
    """The unfinished file of a blob, for this process alone; None where the blob is there."""
    path = blob.with_name(f"{blob.name}.incomplete")
    while not blob.exists():
        with _Part(path) as part:
            _lock(part.fileno())  # released when it is closed
            if blob.exists():  # the process that held the lock has just renamed its file
                break
            if _is_at(part, path):
                yield part
                return
    else:
        yield None
        return
    path.unlink(missing_ok=True)
    yield None


def _is_at(part: _Part, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(part.fileno()), path.stat())
    except OSError:
        return False


def _lock(descriptor: int) -> None:
    with suppress(
        OSError
    ):  # a file system without locks: two processes may mix their bytes, which the digest shows
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is_intact(path: Path, digest: str) -> bool:
    """Whether a file has this SHA-256, or as a git object this SHA-1."""
    with path.open("rb") as file:
        if len(digest) == 64:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
        found = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
        while chunk := file.read(1 << 20):
            found.update(chunk)
        return found.hexdigest() == digest


def _remove_cut(target: Target, pointer: Path) -> None:
    """Remove a file of the snapshot that was cut short, and the blob that it links to if that is the repository's."""
    if pointer.is_symlink():
        blob = Path(os.path.normpath(pointer.parent / pointer.readlink()))
        if blob.parent == target.folder / "blobs":
            blob.unlink(missing_ok=True)
    pointer.unlink(missing_ok=True)


def _changed(target: Target, file: RemoteFile) -> ModelError:
    return ModelError(
        f"{file.name:.200} of hub model {target.listing.repository} arrived twice with other bytes than the hub lists: "
        "something between here and the hub changes them"
    )


def wrong_size(file: RemoteFile) -> HubFailure:
    return HubFailure(f"sends {file.name:.200} in another size than it lists, {file.size} bytes")


@contextmanager
def _storing(target: Target, file: RemoteFile) -> Iterator[None]:
    """Turns failures of the disk into sentences."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ModelError(
                f"the disk of the cache {target.cache} is full: free some of it, and the same command goes on with "
                f"{file.name:.200} where it stopped"
            ) from error
        if error.errno in _FORBIDDEN:
            raise ModelError(
                f"the cache {target.cache} cannot be written to ({error.strerror}): name another folder with "
                "--download-dir or HF_HUB_CACHE"
            ) from error
        if target.cache.exists() and not target.cache.is_dir():
            raise ModelError(
                f"the cache {target.cache} is not a folder: name one with --download-dir or HF_HUB_CACHE"
            ) from error
        if Path(str(error.filename)).is_relative_to(target.cache):  # connections fail with OSError, too
            raise ModelError(
                f"the cache {target.cache} is damaged: {error.filename}: {error.strerror}; "
                f"`headrace rm {target.listing.repository}` deletes the model's files there"
            ) from error
        raise
