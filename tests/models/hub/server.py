"""A hub on this machine: the part of Hugging Face's HTTP API that downloads use, and faults on demand.

Large files are answered with a redirect to a second server, as the hub's are, with a signed address that takes no
token.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest


def git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Repository:
    """Commits by branch and tag, files by commit. `large`: names stored with LFS. `lies`: fields of listed files
    to replace."""

    files: dict[str, bytes]
    commit: str = "a" * 40
    refs: dict[str, str] = field(default_factory=dict)
    others: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: bool = False
    lies: dict[str, dict[str, object]] = field(default_factory=dict)

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commit = {"main": self.commit, **self.refs}.get(revision, revision)
        if commit == self.commit:
            return commit, self.files
        return (commit, self.others[commit]) if commit in self.others else None


@dataclass
class Faults:
    """cut: bytes after which the next answers with a file's content end. corrupt: how many of them have a wrong byte.
    statuses: of the next answers whose path holds a text. no_ranges: `Range` is not obeyed. tags: in place of the
    digest in a file's ETag."""

    cut: dict[str, list[int]] = field(default_factory=dict)
    corrupt: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    no_ranges: bool = False
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Hub:
    """What the servers hold, and the requests that came."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    store: str = ""

    def asked(self, text: str, method: str = "GET") -> list[Request]:
        """The requests of a method whose path holds a text."""
        return [request for request in self.requests if text in request.path and request.method == method]


LARGE = (".gguf", ".safetensors")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.requests.append(Request(self.command, path, {k.lower(): v for k, v in self.headers.items()}))
        for text, statuses in hub.faults.statuses.items():
            if text in path and statuses:
                return self._send(statuses.pop(0), b"{}")
        if path.startswith("/store/"):
            return self._content(path.rsplit("/", 1)[-1], path.split("/")[2])
        parts = path.split("/")
        if path.startswith("/api/models/"):
            repository = hub.repositories.get("/".join(parts[3:5]))
            revision = "/".join(parts[6:]) or "main"
            return self._describe("/".join(parts[3:5]), repository, revision)
        if len(parts) > 5 and parts[3] == "resolve":
            return self._resolve("/".join(parts[1:3]), parts[4], "/".join(parts[5:]))
        return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _describe(self, name: str, repository: Repository | None, revision: str) -> None:
        if repository is None:
            return self._send(401, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        found = repository.at(revision)
        if found is None:
            return self._send(404, b'{"error": "Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
        commit, files = found
        siblings = []
        for file, content in files.items():
            entry: dict[str, object] = {
                "rfilename": file,
                "size": len(content),
                "blobId": git_digest(content),
            }
            if file.endswith(LARGE):
                entry["lfs"] = {"sha256": digest(content), "size": len(content), "pointerSize": 130}
            siblings.append({**entry, **repository.lies.get(file, {})})
        body = {"id": name, "sha": commit, "private": False, "tags": [], "downloads": 0, "siblings": siblings}
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        if repository.gated:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        found = repository.at(revision)
        if found is None:
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        commit, files = found
        if file not in files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        content = files[file]
        headers, tags = {"X-Repo-Commit": commit}, self.hub.faults.tags
        if not file.endswith(LARGE):
            return self._bytes(
                file, content, {**headers, "ETag": f'"{tags.get(file) or git_digest(content)}"'}
            )
        headers |= {
            "X-Linked-Etag": f'"{tags.get(file) or digest(content)}"',
            "X-Linked-Size": str(len(content)),
            "Location": f"{self.hub.store}/store/{digest(content)}/{file.rsplit('/', 1)[-1]}",
        }
        return self._send(302, b"", headers)

    def _content(self, file: str, sha256: str) -> None:
        for repository in self.hub.repositories.values():
            for files in (repository.files, *repository.others.values()):
                for content in files.values():
                    if digest(content) == sha256:
                        return self._bytes(file, content, {"ETag": f'"{sha256}"'})
        return self._send(404, b"")

    def _bytes(self, file: str, content: bytes, headers: dict[str, str]) -> None:
        faults, status, begin = self.hub.faults, 200, 0
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes=") and not faults.no_ranges:
            begin = int(asked.removeprefix("bytes=").split("-")[0])
            if begin >= len(content):
                return self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            status, headers = (
                206,
                {**headers, "Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"},
            )
        body = content[begin:]
        if self.command == "GET" and faults.corrupt.get(file, 0) > 0 and body:
            faults.corrupt[file] -= 1
            body = bytes([body[0] ^ 1]) + body[1:]
        cuts = faults.cut.get(file)
        if self.command == "GET" and cuts:
            self._send(status, body, headers, cut=cuts.pop(0))
        else:
            self._send(status, body, headers)

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that left is no error."""


@contextmanager
def running() -> Iterator[Hub]:
    """A hub and its store, each on a port of its own."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [_Server(("127.0.0.1", 0), handler) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    hub.url = f"http://127.0.0.1:{servers[0].server_address[1]}"
    hub.store = f"http://localhost:{servers[1].server_address[1]}"  # another host, as the hub's store is
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


def environment(monkeypatch: pytest.MonkeyPatch, hub: Hub, cache: str) -> None:
    """Let this process, and those that it starts, use the hub and a cache of their own."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_CACHE", cache)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    for name in (
        "HF_HUB_OFFLINE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
