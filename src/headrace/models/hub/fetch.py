"""From a reference to the local path of its model: from the hub, or from the cache where the hub does not answer."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from headrace.errors import ModelError, ModelNotFound
from headrace.models.disk import gigabytes
from headrace.models.hub.files import gguf_models, needed_files, side_files, weight_shards
from headrace.models.hub.reference import Reference
from headrace.models.hub.remote import HubFailure, Listing, cache_folder, list_files
from headrace.models.hub.transfer import Target, fetch_file, is_there, repository_folder, wrong_size

WORKERS = 4
"""Files that are fetched at once."""

_REVISION = re.compile(r"[A-Za-z0-9](?!.*\.\.)[\w./+-]{0,250}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model in the cache. path: its folder, or the first of its GGUF files. fetched: bytes that were downloaded."""

    path: Path
    commit: str
    files: tuple[str, ...]
    bytes: int
    fetched: int


def locate(
    reference: Reference,
    *,
    revision: str | None = None,
    download_dir: str | None = None,
    weights: bool = True,
) -> Path:
    """The folder or GGUF file of a model, downloaded if need be; without `weights` its folder, for the tokenizer.

    A copy in the cache serves where the hub does not answer, or no longer gives the model. Raises ModelNotFound where
    there is none, with the reason, and ModelError where a download cannot be stored.
    """
    reference = with_revision(reference, revision)
    try:
        listing = list_files(reference)
    except HubFailure as failure:
        if failure.lasting:
            raise _not_found(reference, failure) from failure
        return _cached(reference, cache_folder(download_dir), failure, weights=weights)
    names = _names(reference, list(listing.files), weights=weights)
    try:
        fetched = download(reference, listing, names, cache_folder(download_dir))
    except HubFailure as failure:
        raise _not_found(reference, failure) from failure
    return fetched.path


def pull(reference: Reference, *, revision: str | None = None, download_dir: str | None = None) -> Fetched:
    """Download what a run needs of a model. Raises ModelNotFound or ModelError, each with one sentence."""
    reference = with_revision(reference, revision)
    try:
        listing = list_files(reference)
        return download(
            reference, listing, _names(reference, list(listing.files)), cache_folder(download_dir)
        )
    except HubFailure as failure:
        raise _not_found(reference, failure) from failure


def with_revision(reference: Reference, revision: str | None) -> Reference:
    """The reference at the revision that an option names. Raises ModelNotFound for one that no hub has."""
    if revision is None or revision == reference.revision:
        return reference
    if reference.revision is not None:
        raise ModelNotFound(
            f"{reference} has the revision {reference.revision}, and the option names {revision!r:.200}"
        )
    if not _REVISION.fullmatch(revision):
        raise ModelNotFound(f"hub model {reference.repository} has no revision {revision!r:.200}")
    return replace(reference, revision=revision)


def download(reference: Reference, listing: Listing, names: Sequence[str], cache: Path) -> Fetched:
    """Bring these files into the cache, several at once, with a bar where standard error is a terminal.

    Raises HubFailure, and ModelError where they cannot be stored.
    """
    target = Target(listing, cache, lambda count: None, threading.Event())
    files = [listing.files[name] for name in names]
    needed = [file for file in files if not is_there(target, file)]
    total = sum(file.size or 0 for file in needed)
    _check_room(cache, repository_folder(cache, listing.repository), total)
    with _bar(str(reference), total) as advance, _quiet_hub():
        target = replace(target, advance=advance)
        # The largest first, so that none of them is left for the end.
        order = sorted(needed, key=lambda file: -(file.size or 0))
        _run(target, [partial(fetch_file, target, file) for file in order])
    for file in files:
        if not is_there(target, file):  # another file with the same ETag took its place
            raise wrong_size(file)
    _write_ref(target, reference)
    sizes = [(target.snapshot / name).stat().st_size for name in names]
    return Fetched(_model_path(target.snapshot, names), listing.commit, tuple(names), sum(sizes), total)


def _run(target: Target, work: Sequence[Callable[[], None]]) -> None:
    """Run all of it; the first failure, or Ctrl-C, ends the rest."""
    if not work:
        return
    with ThreadPoolExecutor(min(WORKERS, len(work)), thread_name_prefix="download") as pool:
        futures = [pool.submit(one) for one in work]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failed = [future for future in done if future.exception() is not None]
            if failed:
                target.stop.set()
                failed[0].result()
        except BaseException:
            target.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _names(reference: Reference, names: Sequence[str], *, weights: bool = True) -> tuple[str, ...]:
    found = needed_files(reference.repository, names, reference.tag) if weights else tuple(side_files(names))
    if not found:
        raise ModelNotFound(
            f"hub model {reference.repository} has no file that Headrace reads: neither safetensors nor GGUF"
            if weights
            else f"hub model {reference.repository} has no tokenizer files"
        )
    return found


def _model_path(folder: Path, names: Sequence[str]) -> Path:
    """The first GGUF file, or the folder."""
    return folder / names[0] if names[0].lower().endswith(".gguf") else folder


def _cached(reference: Reference, cache: Path, failure: HubFailure, *, weights: bool) -> Path:
    """What the cache holds of a model; `failure`: why the hub is no help."""
    repository = repository_folder(cache, reference.repository)
    revision = reference.revision or "main"
    commit = revision if _COMMIT.fullmatch(revision) else ""
    with suppress(OSError, UnicodeDecodeError):
        commit = commit or (repository / "refs" / revision).read_text(encoding="ascii").strip()
    folder = repository / "snapshots" / commit
    if not _COMMIT.fullmatch(commit) or not folder.is_dir():
        raise _not_cached(reference, failure)
    if not weights:
        return folder
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    if not weight_shards(names) and not gguf_models(names):
        raise _not_cached(reference, failure)
    try:
        return _model_path(folder, needed_files(reference.repository, names, reference.tag))
    except ModelNotFound as error:
        raise ModelNotFound(f"{error} (the copy in the local cache; {failure.why})") from failure


def _not_cached(reference: Reference, failure: HubFailure) -> ModelNotFound:
    if not failure.away:
        return _not_found(reference, failure)
    return ModelNotFound(f"hub model {reference} is not in the local cache, and {failure.why}")


def _not_found(reference: Reference, failure: HubFailure) -> ModelNotFound:
    return ModelNotFound(f"hub model {reference.repository} {failure}")


def _check_room(cache: Path, repository: Path, total: int) -> None:
    """Raises ModelError where the disk has less room than `total` bytes, less what came earlier."""
    there = next((folder for folder in (cache, *cache.parents) if folder.is_dir()), None)
    if there is None or not total:
        return
    came = 0
    for part in repository.glob("blobs/*.incomplete"):
        with suppress(OSError):
            came += part.stat().st_size
    free = shutil.disk_usage(there).free
    if total - came > free:
        raise ModelError(
            f"the download needs {gigabytes(total - came)}, but the disk of the cache {cache} has {gigabytes(free)} "
            "free; name a folder on another disk with --download-dir or HF_HUB_CACHE, or delete models: `headrace rm`"
        )


def _write_ref(target: Target, reference: Reference) -> None:
    """Note which commit the revision is, for runs without the network: `refs/REVISION`, as huggingface_hub does."""
    revision = reference.revision or "main"
    if revision == target.listing.commit:
        return
    path = target.folder / "refs" / revision
    fresh = target.folder / f".ref-{os.getpid()}-{threading.get_ident()}"
    with suppress(OSError):  # a cache that can only be read
        if path.is_file() and path.read_bytes() == target.listing.commit.encode():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(target.listing.commit)
        fresh.replace(path)
    fresh.unlink(missing_ok=True)


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar of bytes on a terminal; nothing where there is nothing to fetch."""
    if not total or sys.stderr is None or not sys.stderr.isatty():
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=f"pulling {title}", unit="B", unit_scale=True, unit_divisor=1000) as bar:
        one = threading.Lock()

        def advance(count: int) -> None:
            with one:
                bar.update(count)

        yield advance


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """huggingface_hub shows no bars and no warnings of its own while a download, or several, run."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
        logging,
    )

    group = "huggingface_hub.http_get"
    with _quiet.one:
        if not _quiet.running:
            _quiet.level, _quiet.bars = logging.get_verbosity(), not are_progress_bars_disabled(group)
            logging.set_verbosity(logging.ERROR)
            if _quiet.bars:
                disable_progress_bars(group)
        _quiet.running += 1
    try:
        yield
    finally:
        with _quiet.one:
            _quiet.running -= 1
            if not _quiet.running:
                logging.set_verbosity(_quiet.level)
                if _quiet.bars:
                    enable_progress_bars(group)


@dataclass(slots=True)
class _Quiet:
    """Downloads that run now, and what huggingface_hub was set to before the first of them."""

    one: threading.Lock = field(default_factory=threading.Lock)
    running: int = 0
    level: int = 0
    bars: bool = False


_quiet = _Quiet()
