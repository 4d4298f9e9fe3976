"""Names that the server answers to, and web pages that may call it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from headrace.errors import ConfigError
from headrace.server.access.hosts import OriginCheck, default_hosts, name_of, normal_origin
from headrace.server.access.keys import Caller
from headrace.server.access.traffic import TrafficOptions
from tests.server.conftest import TinyServer
from tests.server.keyring import bearer, code, keyed

FRIEND = "https://app.example.org"


@pytest.fixture(scope="module")
def server() -> Iterator[TinyServer]:
    server = TinyServer(traffic=keyed(allowed_origins=(FRIEND,)))
    yield server
    server.close()


def port(server: TinyServer) -> str:
    return server.url.rsplit(":", 1)[1]


def get(server: TinyServer, path: str = "/v1/models", **headers: str) -> httpx.Response:
    return server.http.get(path, headers=headers)


def post(server: TinyServer, **headers: str) -> httpx.Response:
    return server.http.post("/v1/completions", json={"prompt": [1], "max_tokens": 1}, headers=headers)


@pytest.mark.parametrize(
    "name", ["localhost", "LOCALHOST", "127.0.0.1", "[::1]", "localhost:{port}", "[::1]:{port}"]
)
def test_the_servers_own_names(server: TinyServer, name: str) -> None:
    assert get(server, Host=name.format(port=port(server))).status_code == 200


@pytest.mark.parametrize(
    "name",
    ["evil.example", "evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1",
     "localhost.", "", "127.0.0.2", "[::2]", "localhost@evil.example", "evil.example#localhost",
     "[::1].evil.example"],
)  # fmt: skip
def test_other_names_are_refused(server: TinyServer, name: str) -> None:
    answer = get(server, Host=name.format(port=port(server)))
    assert code(answer) == (421, "misdirected_request")
    assert "127.0.0.1" not in answer.text  # it does not say what would have worked


def test_a_request_without_a_name_or_with_two_is_refused(server: TinyServer) -> None:
    for head in (
        b"GET /v1/models HTTP/1.0\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: x\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", int(port(server)))) as raw:
            raw.sendall(head)
            assert raw.recv(100).split()[1] in (b"421", b"400")


def test_probes_may_use_any_host_name(server: TinyServer) -> None:
    assert get(server, "/health", Host="10.9.8.7").status_code == 200


def test_a_server_for_all_names() -> None:
    server = TinyServer(traffic=keyed(allowed_hosts=("*",)))
    try:
        assert get(server, Host="anything.example").status_code == 200
    finally:
        server.close()


def test_names_follow_from_the_address_and_keys() -> None:
    assert default_hosts("127.0.0.1", keys=False) == ("127.0.0.1", "::1", "localhost")
    assert default_hosts("127.0.0.2", keys=False) == ("127.0.0.1", "127.0.0.2", "::1", "localhost")
    for bound in ("0.0.0.0", "::", "10.1.2.3", "box.lan"):
        assert default_hosts(bound, keys=False) == ("*",)
    assert default_hosts("127.0.0.1", keys=True) == ("*",)


def test_a_service_name_of_compose_needs_a_key_or_a_network_address(server: TinyServer) -> None:
    assert get(server, Host="headrace:8000").status_code == 421
    protected = TinyServer(traffic=keyed(Caller("a")))
    try:
        assert get(protected, Host="headrace:8000", **bearer("a")).status_code == 200
        assert get(protected, Host="headrace:8000").status_code == 401
    finally:
        protected.close()


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("A.b:80", "a.b"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("a", "a"),
        ("", ""),
        ("a:b:c", "a:b:c"),
    ],
)
def test_names_in_headers(header: str, name: str) -> None:
    assert name_of(header) == name


# ---- Origins ----


def test_the_servers_own_page_may_call(server: TinyServer) -> None:
    assert post(server, Origin=server.url).status_code == 200
    own = f"http://localhost:{port(server)}"
    assert post(server, Origin=own, Host=f"localhost:{port(server)}").status_code == 200
    assert "access-control-allow-origin" not in post(server, Origin=server.url).headers


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost:{port}", "{url}.evil.example", "", "file://",
     "https://app.example.org.evil.example", "https://app.example.org:444", "http://app.example.org",
     "chrome-extension://{port}", "{url}/", "{url}, https://evil.example"],
)  # fmt: skip
def test_pages_of_other_origins_may_not(server: TinyServer, origin: str) -> None:
    origin = origin.format(port=port(server), url=server.url)
    for answer in (
        post(server, Origin=origin),
        get(server, Origin=origin),
        get(server, "/live", Origin=origin),
    ):
        assert code(answer) == (403, "forbidden_origin")
        assert "access-control-allow-origin" not in answer.headers
    preflight = server.http.options(
        "/v1/completions", headers={"Origin": origin, "Access-Control-Request-Method": "POST"}
    )
    assert preflight.status_code == 403


def test_a_check_that_looks_at_the_beginning_only_is_noticed(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        OriginCheck, "_allows", lambda self, origin: origin.startswith(FRIEND.encode()), raising=True
    )
    assert post(server, Origin="https://app.example.org.evil.example").status_code != 403


def test_requests_without_an_origin_pass(server: TinyServer) -> None:
    assert post(server).status_code == 200


def test_an_allowed_origin_gets_cors_headers(server: TinyServer) -> None:
    asked = {
        "Origin": FRIEND,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    preflight = server.http.options("/v1/chat/completions", headers=asked)
    assert preflight.status_code == 204 and preflight.headers["access-control-allow-origin"] == FRIEND
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert preflight.headers["access-control-allow-headers"] == "authorization, content-type"
    assert "access-control-allow-credentials" not in preflight.headers
    answer = post(server, Origin=FRIEND)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == FRIEND
    assert (
        "Origin" in answer.headers["vary"]
        and "retry-after" in answer.headers["access-control-expose-headers"]
    )
    refused = server.http.post("/v1/completions", json={}, headers={"Origin": FRIEND})
    assert refused.status_code == 400 and refused.headers["access-control-allow-origin"] == FRIEND


@pytest.mark.parametrize(
    ("origin", "normal"),
    [("https://A.example", "https://a.example"), ("http://a:80/", "http://a:80"), ("a.example", None), ("", None),
     ("ftp://a", None), ("https://a/path", None), ("https://", None), ("https://a:x", None), ("https://u@a", None)],
)  # fmt: skip
def test_valid_and_invalid_origins(origin: str, normal: str | None) -> None:
    if normal is None:
        with pytest.raises(ValueError, match="is not an origin"):
            normal_origin(origin)
    else:
        assert normal_origin(origin) == normal


@pytest.mark.parametrize(
    "options",
    [{"allowed_hosts": ["a:80"]}, {"allowed_hosts": ["http://a"]}, {"allowed_hosts": [""]}, {"allowed_origins": ["a"]},
     {"allowed_hosts": ["a"] * 1001}],
)  # fmt: skip
def test_invalid_options_are_refused(options: dict[str, list[str]]) -> None:
    defaults: dict[str, object] = {
        "max_queue": 1, "max_queue_tokens": None, "queue_timeout_s": None, "request_timeout_s": None, "api_keys": [],
        "environment_key": None, "api_key_file": None, "share_prefix": False, "allowed_hosts": None,
        "allowed_origins": [],
    }  # fmt: skip
    with pytest.raises(ConfigError):
        TrafficOptions.made(**defaults | options)  # type: ignore[arg-type]
