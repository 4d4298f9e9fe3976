"""The corpus of the bundled models: seeds, splits, template form and vocabulary."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.tale.corpus import CHAT_TEMPLATE, document, render, stream  # noqa: E402
from tools.tale.grammar import Story, Wishes, held_out, polish  # noqa: E402
from tools.tale.words import SPECIALS  # noqa: E402

BUNDLED = ROOT / "src/headrace/bundled"


def test_documents_depend_on_their_number_alone() -> None:
    once = [d.text for d in stream(0, 40)]
    assert once == [d.text for d in stream(0, 40)]
    assert document(17).text == once[17]


def test_documents_differ() -> None:
    texts = {d.text for d in stream(0, 400)}
    assert len(texts) > 395


def test_heldout_split_is_disjoint() -> None:
    train = {d.text for d in stream(0, 400)}
    held = {d.text for d in stream(0, 400, heldout=True) if len(d.text) > 200}
    assert not train & held


@pytest.mark.parametrize("heldout", [False, True])
def test_hero_and_thing_pairs_follow_the_split(heldout: bool) -> None:
    for seed in range(150):
        story = Story(random.Random(seed), Wishes(heldout=heldout))
        story.tell()
        assert held_out(story.kind, story.first_thing) is heldout


def test_text_is_well_formed() -> None:
    bad = re.compile(r"[{}\[\]^]|\b[Aa] [aio]\w+|\b[Aa]n [bcdfg]\w+| ,|\bthe the\b|\bwas was\b")
    for doc in stream(0, 400):
        assert doc.text.startswith("<|begin|>") and doc.text.endswith("<|end|>")
        found = bad.search(doc.text.replace("\n- ", " "))
        assert not found, doc.text


def test_articles_and_capitals() -> None:
    assert polish("a owl saw a unicorn. ^it was a old one") == "An owl saw a unicorn. It was an old one"


def test_template_renders_documents_exactly() -> None:
    jinja2 = needs.package("jinja2")
    template = jinja2.Template(CHAT_TEMPLATE)
    chats = [d for d in stream(0, 60) if d.messages]
    assert len(chats) > 20
    for doc in chats:
        assert template.render(messages=doc.messages, add_generation_prompt=False) == doc.text
    asked = chats[0].messages[:1]
    assert template.render(messages=asked, add_generation_prompt=True) == render(asked, generate=True)
    assert render(asked, generate=True).endswith("<|assistant|>")


@pytest.mark.parametrize("name", ["tale", "tale-draft"])
def test_bundled_vocabulary_round_trip(name: str) -> None:
    tokenizers = needs.package("tokenizers")
    path = BUNDLED / name / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    assert tokenizer.get_vocab_size() == 2048
    assert [tokenizer.token_to_id(s) for s in SPECIALS] == list(range(6))
    for text in ["Once upon a time", "\x00\x7f zażółć 日本語 🦊\n\n\t", *(d.text for d in stream(0, 20))]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.encode("Hello").ids[0] == 0
    assert (BUNDLED / name / "chat_template.jinja").read_text() == CHAT_TEMPLATE
