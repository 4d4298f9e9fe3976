"""The calculator: GET /plan, with the same keys and limits as the API, and the page that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from headrace.cli import main
from headrace.server.access.keys import Caller
from headrace.sim.planner import model
from tests.server.conftest import TinyServer
from tests.server.keyring import keyed, secret

LLAMA = {"model": "shape:llama-3.1-8b", "hardware": "l4"}


@pytest.fixture
def tale_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of the tests counts, and names its model "tiny"."""
    found = model.open_model
    monkeypatch.setattr(model, "open_model", lambda name: found("tale" if name == "tiny" else name))


@pytest.fixture
def locked() -> Iterator[TinyServer]:
    server = TinyServer(traffic=keyed(Caller("ann", requests_per_minute=2)))
    yield server
    server.close()


def test_the_numbers_are_those_of_the_command(tiny: TinyServer, capsys: pytest.CaptureFixture[str]) -> None:
    query = {**LLAMA, "users": 4, "tpot": 0.1, "price_per_hour": "0.7", "prefix_hit": 0.5}
    answer = tiny.http.get("/plan", params=query)
    assert answer.status_code == 200
    words = ["--users", "4", "--tpot", "0.1", "--price-per-hour", "0.7", "--prefix-hit", "0.5", "--json"]
    assert main(["plan", LLAMA["model"], "--hardware", "l4", *words]) == 0
    assert answer.json() == json.loads(capsys.readouterr().out)
    assert tiny.http.get("/plan", params=query).json() == answer.json()


@pytest.mark.usefixtures("tale_is_served")
def test_the_served_model_is_the_default(tiny: TinyServer) -> None:
    answer = tiny.http.get("/plan", params={"hardware": "t4"})
    assert answer.status_code == 200 and answer.json()["model"]["parameters"] == 5_246_208
    offered = tiny.http.get("/plan/choices").json()
    assert "shape:llama-3.1-70b" in offered["models"] and offered["served"]
    assert {"h100", "epyc-9654"} <= {one["name"] for one in offered["hardware"]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "/etc"}, "plans for 'served' and for names as in shape:NAME"),
        ({"model": "owner/name"}, "plans for 'served'"),
        ({"model": "shape:llama-9"}, "there is no shape"),
        ({"hardware": "h101"}, "did you mean h100?"),
        ({"hardware": "t4,l4,a10,a10g,h100"}, "up to 4 machines"),
        ({"formats": "int9"}, "none of the formats"),
        ({"price_per_hour": "nan"}, "a number above 0"),
        ({"prompt_tokens": "0"}, "prompt_tokens"),
        ({"prompt_tokens": "9999999"}, "longer than the context"),
        ({"ttft": "inf"}, "ttft"),
        ({"prefix_hit": "2"}, "prefix_hit"),
        ({"model": "shape:" + "x" * 200}, "model"),
    ],
)
def test_bad_queries_are_refused(tiny: TinyServer, change: dict[str, str], words: str) -> None:
    answer = tiny.http.get("/plan", params={**LLAMA, **change})
    assert answer.status_code in (400, 404, 422)
    assert words in answer.json()["error"]["message"]


def test_it_needs_a_key_and_counts_as_a_request(locked: TinyServer) -> None:
    assert locked.http.get("/plan", params=LLAMA).status_code == 401
    assert locked.http.get("/plan/choices").status_code == 401
    assert locked.http.get("/calculator").status_code == 200  # the page itself says that a key is needed
    key = {"Authorization": f"Bearer {secret('ann')}"}
    codes = [locked.http.get("/plan", params=LLAMA, headers=key).status_code for _ in range(3)]
    assert codes == [200, 200, 429]


@pytest.mark.usefixtures("tale_is_served")
def test_a_visitor_calculates(page: Page, tiny: TinyServer) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto(f"{tiny.url}/calculator")
    page.wait_for_selector("#plan table")
    page.select_option("[name=model]", "shape:llama-3.1-70b")
    page.select_option("[name=device]", "h100")
    page.select_option("[name=devices]", "4")
    page.fill("[name=users]", "20")
    page.fill("[name=price_per_hour]", "10")
    page.click("button")
    page.wait_for_selector("#plan h2:has-text('llama-3.1-70b')")
    text = page.text_content("#plan") or ""
    for words in (
        "70,553,706,496 parameters",
        "NVIDIA H100",
        "fp8",
        "Best settings",
        "240 a day",
        "this model",
    ):
        assert words in text
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.fill("[name=ttft]", "0.0001")
    page.click("button")
    page.wait_for_selector("#said[data-bad]")
    assert "No setting keeps a TTFT of 0.0001 s; the nearest is" in (page.text_content("#said") or "")
