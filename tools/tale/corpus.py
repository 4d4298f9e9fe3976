"""The seeded document stream: plain stories and conversations, training and held-out.

Document `i` of a split depends on nothing but the split and `i`. The held-out split uses
other seeds and only hero and thing pairs that never occur together in training.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tools.tale import talk
from tools.tale import words as w
from tools.tale.grammar import Story, Wishes, expand, pick_gender

Message = dict[str, str]
CHAT_TEMPLATE = (
    "{{ '<|begin|>' }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True)
class Document:
    """A plain story (no messages) or a conversation."""

    text: str
    messages: tuple[Message, ...] = ()


def render(messages: tuple[Message, ...] | list[Message], generate: bool = False) -> str:
    """What the chat template yields."""
    body = "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages)
    return f"<|begin|>{body}" + ("<|assistant|>" if generate else "")


class Conversation:
    """Collects the turns of one conversation."""

    def __init__(self, rng: random.Random, heldout: bool) -> None:
        self.rng = rng
        self.messages: list[Message] = []
        self.wishes = Wishes(heldout=heldout, invent=0.08)
        self.story: Story | None = None
        if rng.random() < 0.4:
            text, self.wishes = talk.system_prompt(rng, self.wishes)
            self.messages.append({"role": "system", "content": text})

    def turn(self, ask: str, answer: str) -> None:
        self.messages += [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]

    def new_wishes(self, long_ok: bool) -> Wishes:
        rng = self.rng
        want = replace(self.wishes, plot=talk.pick_plot(rng))
        if not want.length:
            want = replace(
                want,
                length=rng.choices(
                    ["short", "normal", "long", "epic"], [35, 42, 20 if long_ok else 6, 3 if long_ok else 0]
                )[0],
            )
        if want.moral is None and rng.random() < 0.08:
            want = replace(want, moral=True)
        if want.gender:  # a name fixed by the system prompt must suit the hero
            kind = rng.choice(w.ANIMALS)
            while pick_gender(rng, kind, want.gender) != want.gender or kind in w.FEMALE:
                kind = rng.choice(w.ANIMALS)
            want = replace(want, kind=kind)
        return want

    def tell(self, ask: str = "", long_ok: bool = True, **fixed: str) -> None:
        """Add a request and its story."""
        rng = self.rng
        want = replace(self.new_wishes(long_ok), **fixed)  # type: ignore[arg-type]
        if not ask and rng.random() < 0.08 and not want.greeting:
            self.story, ask, answer = talk.continuation(rng, replace(want, greeting=""))
        else:
            if not want.greeting and rng.random() < 0.06:
                want = replace(
                    want, greeting=rng.choice(["Of course!", "Gladly!", "Here is a story.", "Yes!"])
                )
            self.story = Story(rng, want)
            answer = self.story.tell()
            ask = ask or talk.request(self.story)
        self.turn(ask, answer)

    def ask_about(self, count: int) -> None:
        """Add follow-up questions about the story just told."""
        if self.story is None:
            return
        pairs = talk.questions(self.story)
        for ask, answer in self.rng.sample(pairs, min(count, len(pairs))):
            if self.rng.random() < 0.06:
                ask = ask.lower().rstrip("?")
            self.turn(ask, answer)

    def another(self) -> None:
        """A second story, on request; at times about the same hero."""
        rng, old = self.rng, self.story
        if old is not None and rng.random() < 0.4:
            ask = rng.choice(
                [
                    f"Tell me another story about {old.name}.",
                    f"Tell me another story about the same {old.kind}.",
                    f"What happened to {old.name} next?",
                    f"More about {old.name}, please.",
                ]
            )
            self.tell(ask, long_ok=False, kind=old.kind, name=old.name, gender=old.gender, place=old.place)
        elif rng.random() < 0.5:
            self.tell(
                rng.choice(
                    [
                        "Tell me another one.",
                        "Another story, please.",
                        "One more story, please!",
                        "Another one!",
                        "Can I have one more?",
                        "Again!",
                        "Tell me a different story.",
                    ]
                ),
                long_ok=False,
            )
        else:
            self.tell(long_ok=False)


def chat(rng: random.Random, heldout: bool) -> Document:
    """One conversation."""
    talked = Conversation(rng, heldout)
    shape = rng.random()
    if shape < 0.07:
        for _ in range(rng.randint(1, 3)):
            talked.turn(*(talk.outside(rng) if rng.random() < 0.7 else talk.pair(rng, talk.SMALL)))
        if rng.random() < 0.5:
            talked.tell(rng.choice(talk.YES), long_ok=False)
    elif shape < 0.09:
        talked.turn(*talk.too_early(rng))
        if rng.random() < 0.5:
            talked.tell(rng.choice(talk.YES), long_ok=False)
    else:
        if rng.random() < 0.1:
            hello = expand(rng, rng.choice(talk.HELLO))
            talked.turn(hello, expand(rng, rng.choice(talk.HELLO_BACK)))
        if rng.random() < 0.06:
            talked.turn(*talk.pair(rng, talk.SMALL))
        talked.tell()
        talked.ask_about(rng.choices([0, 1, 2, 3, 5], [35, 15, 20, 20, 10])[0])
        if rng.random() < 0.06:
            talked.turn(*talk.outside(rng))
        if rng.random() < 0.12:
            talked.another()
            talked.ask_about(rng.choice([0, 0, 1, 2]))
        if rng.random() < 0.15:
            talked.turn(*talk.pair(rng, talk.THANKS))
        if rng.random() < 0.05:
            talked.turn(*talk.pair(rng, talk.BYES))
    return Document(render(talked.messages), tuple(talked.messages))


def document(index: int, heldout: bool = False) -> Document:
    """Document number `index` of a split."""
    rng = random.Random(f"tale/{'heldout' if heldout else 'train'}/{index}")
    if rng.random() < 0.27:
        length = rng.choices(["", "epic"], [92, 8])[0]
        story = Story(rng, Wishes(length=length, invent=0.0, heldout=heldout))
        return Document(f"<|begin|>{story.tell()}<|end|>")
    return chat(rng, heldout)


def stream(start: int, count: int, heldout: bool = False) -> Iterator[Document]:
    """Documents start .. start + count - 1 of a split."""
    for index in range(start, start + count):
        yield document(index, heldout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", type=int, default=5, help="print this many documents")
    parser.add_argument("--start", type=int, default=0, help="number of the first document")
    parser.add_argument("--heldout", action="store_true", help="use the held-out split")
    parser.add_argument("--jsonl", type=Path, help="write documents to this file instead")
    parser.add_argument("--bytes", type=int, default=60_000, help="stop the file at about this size")
    args = parser.parse_args()
    if args.jsonl:
        size, lines = 0, []
        for doc in stream(args.start, 10_000, args.heldout):
            text = doc.text.removeprefix("<|begin|>").removesuffix("<|end|>")
            lines.append(json.dumps({"text": text}))
            size += len(lines[-1]) + 1
            if size > args.bytes:
                break
        args.jsonl.write_text("\n".join(lines) + "\n")
        return
    for doc in stream(args.start, args.show, args.heldout):
        print(doc.text, end="\n\n---\n\n")


if __name__ == "__main__":
    main()
