"""Makes the data of the task: how held-out stories begin, and four sentences of which one comes next."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

HELD_OUT = Path(__file__).parents[3] / "src" / "headrace" / "bundled" / "heldout.jsonl"
CHOICES = 4


def main(folder: str) -> None:
    stories = [json.loads(line) for line in HELD_OUT.read_text(encoding="utf-8").splitlines()]
    texts = [sentences for story in stories if len(sentences := _sentences(_text(story))) >= 4]
    rng = random.Random(0)
    lines = []
    for index, sentences in enumerate(texts):
        others = rng.sample([text for other, text in enumerate(texts) if other != index], CHOICES - 1)
        choices = [sentences[2], *(text[2] for text in others)]
        order = rng.sample(range(CHOICES), CHOICES)
        lines.append(
            {
                "query": " ".join(sentences[:2]),
                "choices": [choices[place] for place in order],
                "gold": order.index(0),
            }
        )
    path = Path(folder) / "next_sentence.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _text(story: object) -> str:
    if isinstance(story, dict):
        return str(story.get("text", ""))
    return str(story)


def _sentences(text: str) -> list[str]:
    return [part.strip() + "." for part in text.replace("\n", " ").split(".") if part.strip()]


if __name__ == "__main__":
    main(sys.argv[1])
