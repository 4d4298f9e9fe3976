"""Downloads from a hub on this machine: what arrives, how it is resumed and verified, and how failures read."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ModelError, ModelNotFound
from headrace.models.hub import fetch, transfer
from headrace.models.hub.reference import parse_reference
from headrace.models.hub.remote import cache_folder
from headrace.models.source import is_at_hand, resolve_model, tokenizer_folder
from tests.models.hub.conftest import BIG
from tests.models.hub.server import Hub, digest


def pull(text: str, **options: Any) -> fetch.Fetched:
    reference = parse_reference(text)
    assert reference is not None
    return fetch.pull(reference, **options)


def sentence(text: str, error: type[Exception] = ModelNotFound) -> str:
    with pytest.raises(error) as caught:
        pull(text)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 400
    return said


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_only_what_a_run_needs(hub: Hub, cache: Path) -> None:
    done = pull("org/plain")
    assert names(done.path) == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (done.path / "model.safetensors").read_bytes() == b"weights" + BIG
    assert done.path == cache / "models--org--plain" / "snapshots" / ("b" * 40)
    assert (cache / "models--org--plain" / "refs" / "main").read_text() == "b" * 40
    assert done.fetched == done.bytes
    hub.requests.clear()
    again = pull("org/plain")
    assert again.fetched == 0 and again.path == done.path
    assert [request.path for request in hub.requests] == ["/api/models/org/plain"]  # one question, no file


def test_one_quantisation(hub: Hub) -> None:
    done = pull("org/gguf:q8_0")
    assert done.path.name == "m-Q8_0.gguf" and done.path.read_bytes() == b"m-Q8_0.gguf" + BIG
    assert names(done.path.parent) == {"m-Q8_0.gguf"}
    assert pull("org/gguf").path.name == "m-Q4_K_M.gguf"
    split = pull("org/gguf:F16")
    assert split.path.name == "m-F16-00001-of-00002.gguf" and len(split.files) == 2


def test_the_layout_is_the_hubs_own(hub: Hub, cache: Path) -> None:
    """What Headrace brought, huggingface_hub finds without the network, and the other way round."""
    import huggingface_hub

    done = pull("org/gguf:Q8_0")
    found = huggingface_hub.try_to_load_from_cache("org/gguf", "m-Q8_0.gguf", cache_dir=cache)
    assert found == str(done.path)
    blob = done.path.resolve()
    assert blob.name == digest(b"m-Q8_0.gguf" + BIG) and blob.parent.name == "blobs"
    brought = huggingface_hub.hf_hub_download("org/gguf", "m-Q4_K_M.gguf", cache_dir=cache, endpoint=hub.url)
    hub.requests.clear()
    assert str(pull("org/gguf:Q4_K_M").path) == brought
    assert hub.asked("Q4_K_M") == []


def test_the_token_goes_to_the_hub_only(hub: Hub) -> None:
    pull("org/gguf:Q8_0")
    assert all(
        "authorization" in request.headers
        for request in hub.requests
        if not request.path.startswith("/store")
    )
    stored = hub.asked("/store/")
    assert stored and not any("authorization" in request.headers for request in stored)


@pytest.mark.parametrize("cuts", [[1000], [1000, 500, 70_000], [0, 1_000_000]])
def test_a_cut_connection_goes_on_where_it_ended(hub: Hub, cuts: list[int]) -> None:
    hub.faults.cut["m-Q8_0.gguf"] = list(cuts)
    done = pull("org/gguf:Q8_0")
    assert done.path.read_bytes() == b"m-Q8_0.gguf" + BIG
    asked = [request.headers.get("range") for request in hub.asked("/store/")]
    assert len(asked) == len(cuts) + 1 and asked[-1] == f"bytes={sum(cuts)}-"


def test_a_process_that_was_killed_is_continued_by_the_next(hub: Hub, cache: Path) -> None:
    hub.faults.cut["m-Q8_0.gguf"] = [700_000, *[0] * 100]
    said = sentence("org/gguf:Q8_0")
    assert "the connection ended" in said and "at byte 700000 of m-Q8_0.gguf" in said
    (part,) = cache.glob("models--org--gguf/blobs/*.incomplete")
    assert part.stat().st_size == 700_000
    hub.faults.cut.clear()
    hub.requests.clear()
    assert pull("org/gguf:Q8_0").path.read_bytes() == b"m-Q8_0.gguf" + BIG
    assert [request.headers.get("range") for request in hub.asked("/store/")] == ["bytes=700000-"]
    assert not list(cache.glob("models--org--gguf/blobs/*.incomplete"))


def test_a_server_that_does_not_obey_ranges(hub: Hub) -> None:
    hub.faults.cut["m-Q8_0.gguf"] = [5000]
    hub.faults.no_ranges = True
    assert pull("org/gguf:Q8_0").path.read_bytes() == b"m-Q8_0.gguf" + BIG


@pytest.mark.parametrize("name", ["m-Q8_0.gguf", "config.json"])
def test_damaged_bytes_are_fetched_again(hub: Hub, name: str) -> None:
    hub.faults.corrupt[name] = 1
    done = pull("org/gguf:Q8_0" if name.endswith("gguf") else "org/plain")
    files = hub.repositories["org/gguf" if name.endswith("gguf") else "org/plain"].files
    assert hub.faults.corrupt[name] == 0  # it happened
    folder = done.path if done.path.is_dir() else done.path.parent
    assert (folder / name).read_bytes() == files[name]


def test_bytes_that_stay_damaged_are_refused(hub: Hub, cache: Path) -> None:
    hub.faults.corrupt["m-Q8_0.gguf"] = 99
    assert "m-Q8_0.gguf of hub model org/gguf arrived twice with other bytes" in sentence(
        "org/gguf:Q8_0", ModelError
    )
    assert not list(cache.glob("models--org--gguf/snapshots/*/*"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_bytes_are_compared_with_the_listing_whatever_their_tag(hub: Hub, cache: Path, name: str) -> None:
    """A mirror's ETag need not be a digest; huggingface_hub, which fetches such a file, compares its size only."""
    hub.faults.tags[name] = "tag-of-a-mirror"
    assert (pull("org/plain").path / name).read_bytes() == hub.repositories["org/plain"].files[name]
    shutil.rmtree(cache)
    hub.faults.corrupt[name] = 99
    assert f"{name} of hub model org/plain arrived twice with other bytes" in sentence(
        "org/plain", ModelError
    )
    assert not list(cache.glob(f"models--org--plain/snapshots/*/{name}"))
    hub.faults.corrupt.clear()
    assert (pull("org/plain").path / name).read_bytes() == hub.repositories["org/plain"].files[name]


def test_two_files_with_one_tag(hub: Hub) -> None:
    """Each takes the place of the other in the cache, also where the first was there already."""
    hub.faults.tags = dict.fromkeys(("m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf"), "e" * 64)
    hub.repositories["org/gguf"].files["m-F16-00001-of-00002.gguf"] += b"longer"
    for _ in range(3):
        assert "in another size than it lists" in sentence("org/gguf:F16")


def test_a_part_of_something_else_is_noticed(hub: Hub, cache: Path) -> None:
    blobs = cache / "models--org--gguf" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{digest(b'm-Q8_0.gguf' + BIG)}.incomplete").write_bytes(b"x" * 4000)
    assert pull("org/gguf:Q8_0").path.read_bytes() == b"m-Q8_0.gguf" + BIG
    (blobs / f"{digest(b'm-Q4_K_M.gguf' + BIG)}.incomplete").write_bytes(
        b"x" * 3_000_000
    )  # longer than the file
    assert pull("org/gguf:Q4_K_M").path.read_bytes() == b"m-Q4_K_M.gguf" + BIG


def test_a_cached_file_that_was_cut_short_is_fetched_again(hub: Hub) -> None:
    done = pull("org/gguf:Q8_0")
    with done.path.open("r+b") as file:
        file.truncate(100)
    assert pull("org/gguf:Q8_0").path.read_bytes() == b"m-Q8_0.gguf" + BIG


def test_two_at_once_fetch_it_once(hub: Hub) -> None:
    results: list[fetch.Fetched] = []
    threads = [threading.Thread(target=lambda: results.append(pull("org/gguf:Q8_0"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({result.path for result in results}) == 1 and len(results) == 3
    assert results[0].path.read_bytes() == b"m-Q8_0.gguf" + BIG
    assert len(hub.asked("/store/")) == 1


def test_revisions(hub: Hub) -> None:
    other = {"config.json": b'{"model_type": "qwen2"}', "model.safetensors": b"other"}
    plain = hub.repositories["org/plain"]
    plain.refs["v2"], plain.others["c" * 40] = "c" * 40, other
    assert pull("org/plain@v2").commit == pull("org/plain", revision="v2").commit == "c" * 40
    assert pull(f"org/plain@{'c' * 40}").commit == "c" * 40
    assert pull("org/plain").commit == "b" * 40
    assert resolve_model("org/plain@v2").config == {"model_type": "qwen2"}
    assert "has no revision 'v9'" in sentence("org/plain@v9")
    for wrong in ("../x", "/x", "", "a b", "x" * 300):
        with pytest.raises(ModelNotFound, match="has no revision"):
            pull("org/plain", revision=wrong)
    with pytest.raises(ModelNotFound, match="has the revision v2, and the option names 'main'"):
        pull("org/plain@v2", revision="main")


# ---- Failures ----


def test_what_is_not_there(hub: Hub) -> None:
    assert sentence("org/none") == (
        "hub model org/none is not there, or not public: check the name, or run `hf auth login`"
    )
    assert "has no Q2_K; it has F16, Q4_K_M, Q8_0" in sentence("org/gguf:Q2_K")
    hub.repositories["org/text"] = type(hub.repositories["org/plain"])({"README.md": b"", "model.bin": b""})
    assert sentence("org/text") == (
        "hub model org/text has no file that Headrace reads: neither safetensors nor GGUF"
    )


def test_a_gated_model(hub: Hub) -> None:
    hub.repositories["org/gguf"].gated = True
    assert sentence("org/gguf:Q8_0") == (
        "hub model org/gguf is gated: accept its terms on its page, then run `hf auth login`"
    )


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "may not be read with the token of this machine, or without one (status 401)"),
        (403, "(status 403): run `hf auth login`"),
        (404, "is not there"),
        (429, "the hub limits how often it is asked; try again later"),
        (500, "the hub has a fault of its own (status 500); try again later"),
        (503, "the hub has a fault of its own (status 503)"),
        (418, "the hub answers with status 418"),
    ],
)
def test_statuses(hub: Hub, status: int, said: str) -> None:
    hub.faults.statuses["/api/models"] = [status] * 20
    assert said in sentence("org/gguf:Q8_0")


def test_a_short_fault_of_the_store_is_waited_for(hub: Hub) -> None:
    hub.faults.statuses["/store/"] = [503, 500]
    assert pull("org/gguf:Q8_0").path.read_bytes() == b"m-Q8_0.gguf" + BIG
    hub.faults.statuses["/store/"] = [500] * 100
    assert "fault of its own (status 500)" in sentence("org/gguf:Q4_K_M")


def test_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "hub model org/gguf cannot be fetched: the hub cannot be reached (" in sentence("org/gguf")
    with pytest.raises(
        ModelNotFound, match=r"org/gguf is not in the local cache, and the hub cannot be reached \("
    ):
        resolve_model("org/gguf")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "cannot be fetched: HF_HUB_OFFLINE is set" in sentence("org/gguf")


def test_an_address_that_is_no_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.faults.statuses["/api/models"] = [200]  # with a body that describes nothing
    assert "in another way than a hub does" in sentence("org/gguf")
    hub.repositories["org/gguf"].commit = "../../x"
    assert "is described without a commit" in sentence("org/gguf")


def test_a_full_disk_is_seen_before_it_is_full(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    said = sentence("org/gguf:Q8_0", ModelError)
    assert "needs 1,280,011 bytes" in said and "has 1,000,000 bytes free" in said and "headrace rm" in said
    assert hub.asked("/store/") == []


def test_a_disk_that_fills_up(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came stays, for the next time."""
    write = transfer._Part.write

    def full(part: Any, chunk: Any) -> int:
        write(part, chunk)
        part.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(transfer._Part, "write", full)
    said = sentence("org/gguf:Q8_0", ModelError)
    assert f"the disk of the cache {cache} is full" in said and "goes on with m-Q8_0.gguf" in said
    (part,) = cache.glob("models--org--gguf/blobs/*.incomplete")
    assert part.stat().st_size == 100


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written_to(hub: Hub, cache: Path) -> None:
    cache.mkdir(mode=0o500)
    assert "cannot be written to" in sentence("org/gguf:Q8_0", ModelError)


@pytest.mark.parametrize(
    ("damaged", "folder"), [("blobs", False), ("snapshots", False), ("blobs/DIGEST.incomplete", True)]
)
def test_a_damaged_cache_is_not_the_hubs_fault(hub: Hub, cache: Path, damaged: str, folder: bool) -> None:
    damaged = damaged.replace("DIGEST", digest(b"m-Q8_0.gguf" + BIG))
    path = cache / "models--org--gguf" / damaged
    path.mkdir(parents=True) if folder else path.parent.mkdir(parents=True)
    if not folder:
        path.write_text("a file")
    said = sentence("org/gguf:Q8_0", ModelError)
    assert f"the cache {cache} is damaged: " in said and "`headrace rm org/gguf` deletes" in said
    assert "cannot be reached" not in said


def test_a_listing_that_lies(hub: Hub) -> None:
    """Sizes and digests of the listing are what counts; names that leave the folder are not followed."""
    repository = hub.repositories["org/gguf"]
    repository.files["../../evil-Q2_K.gguf"] = b"evil"
    assert "has no Q2_K" in sentence("org/gguf:Q2_K")
    repository.lies["m-Q8_0.gguf"] = {"size": 10**6}
    assert "sends more bytes of a file than it lists, 1000000" in sentence("org/gguf:Q8_0")
    repository.lies["m-Q8_0.gguf"] = {"size": 10**7}
    sentence("org/gguf:Q8_0")
    content = repository.files["m-Q8_0.gguf"]
    repository.lies["m-Q8_0.gguf"] = {"lfs": {"sha256": "0" * 64, "size": len(content), "pointerSize": 1}}
    assert "arrived twice with other bytes" in sentence("org/gguf:Q8_0", ModelError)


def test_the_first_failure_ends_the_other_files(hub: Hub, cache: Path) -> None:
    hub.faults.statuses["m-F16-00002"] = [404] * 50
    said = sentence("org/gguf:F16")
    assert said.startswith("hub model org/gguf ")


def test_ctrl_c_ends_a_download(hub: Hub, cache: Path) -> None:
    """The process ends as Ctrl-C ends every command, and the next one goes on."""
    hub.faults.cut["m-Q8_0.gguf"] = [300_000, *[0] * 1000]  # it tries again and again
    child = subprocess.Popen(
        [sys.executable, "-m", "headrace", "pull", "org/gguf:Q8_0"], stderr=subprocess.PIPE, text=True
    )
    try:
        while not list(cache.glob("models--org--gguf/blobs/*.incomplete")):
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130 and "Traceback" not in said
    hub.faults.cut.clear()
    assert pull("org/gguf:Q8_0").path.read_bytes() == b"m-Q8_0.gguf" + BIG


# ---- Models by reference ----


def test_resolving_uses_the_cache_where_the_hub_does_not_answer(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = resolve_model("org/plain")
    assert (source.kind, source.name, source.config) == ("hub", "org/plain", {"model_type": "llama"})
    hub.faults.statuses["/api/models"] = [503]
    assert resolve_model("org/plain").path == source.path
    hub.repositories["org/plain"].gated = True
    del hub.repositories["org/plain"]
    assert resolve_model("org/plain").path == source.path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.requests.clear()
    assert resolve_model("org/plain").path == source.path
    assert hub.requests == []
    with pytest.raises(
        ModelNotFound, match=r"hub model org/gguf is not in the local cache, and HF_HUB_OFFLINE is set$"
    ):
        resolve_model("org/gguf")


def test_offline_the_cached_quantisation_is_taken(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull("org/gguf:Q8_0").path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    reference = parse_reference("org/gguf")
    assert reference is not None
    assert fetch.locate(reference) == path  # not Q4_K_M, which is not here
    said = r"no Q4_K_M; it has Q8_0 \(the copy in the local cache; HF_HUB_OFFLINE is set\)"
    with pytest.raises(ModelNotFound, match=said):
        resolve_model("org/gguf:Q4_K_M")


def test_a_tokenizer_comes_without_weights(hub: Hub) -> None:
    folder = tokenizer_folder("org/plain")
    assert names(folder) == {"config.json", "tokenizer.json"}
    assert not hub.asked("safetensors", "HEAD")
    with pytest.raises(ModelNotFound, match="no tokenizer files"):
        tokenizer_folder("org/gguf")


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HF_HUB_CACHE": "{tmp}/a", "HF_HOME": "{tmp}/b"}, "a"),
        ({"HF_HOME": "{tmp}/b"}, "b/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "{tmp}/c", "HF_HOME": "{tmp}/b"}, "c"),
        ({"XDG_CACHE_HOME": "{tmp}/x"}, "x/huggingface/hub"),
        ({"HOME": "{tmp}/h"}, "h/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_hubs_library_has_it(
    tmp_path: Path, environ: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value.format(tmp=tmp_path))
    assert cache_folder() == tmp_path / folder
    library = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    found = subprocess.run([sys.executable, "-c", library], capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()) == tmp_path / folder
    assert cache_folder(str(tmp_path / "mine")) == tmp_path / "mine"
    monkeypatch.chdir(tmp_path)
    assert cache_folder("~no-such-user/c") == tmp_path / "~no-such-user" / "c"  # as huggingface_hub


def test_what_is_at_hand(tmp_path: Path) -> None:
    assert is_at_hand("tale") and is_at_hand("shape:tiny") and is_at_hand(str(tmp_path))
    assert not is_at_hand("org/gguf:Q4_K_M") and not is_at_hand("org/plain@v1")
