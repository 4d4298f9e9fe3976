"""Measures an exported model folder on held-out text, requests and questions.

Requests name a hero and a thing that never occur together in training. Reported: the loss and
perplexity of held-out documents, the share of stories that mention both, the share that end by
themselves, and how often follow-up questions are answered with the right fact.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM

from headrace import LLM, SamplingParams
from tools.tale.corpus import render, stream
from tools.tale.grammar import PLOTS, Story, Wishes
from tools.tale.talk import HELPED, questions, request

LIMIT = 400


class Model:
    """An exported folder in float32: stories come from our own engine, the loss from transformers."""

    def __init__(self, folder: Path) -> None:
        self.llm = LLM(str(folder), dtype="float32")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def answer(self, prompts: list[str], limit: int, temperature: float) -> list[tuple[str, bool]]:
        """The text after each prompt, and whether it ended by itself."""
        ids = [self.llm.tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
        params = SamplingParams(temperature=temperature, max_tokens=limit)
        completions = [out.outputs[0] for out in self.llm.generate(ids, params)]
        return [(one.text, one.finish_reason == "stop") for one in completions]

    @torch.inference_mode()
    def loss(self, documents: int) -> float:
        """Mean next-token loss over held-out documents, weighted by tokens."""
        total, count = 0.0, 0
        for doc in tqdm(stream(0, documents, True), total=documents, desc="loss"):
            ids = torch.tensor([self.llm.tokenizer.encode(doc.text, add_special_tokens=False)[:1025]])
            logits = self.model(ids[:, :-1]).logits[0]
            total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
            count += ids.shape[1] - 1
        return total / count


def told(seed: int) -> Story:
    """A finished held-out story of ordinary length about common or rare words."""
    rng = random.Random(f"tale/evaluate/{seed}")
    length = rng.choice(["short", "normal"])
    story = Story(rng, Wishes(heldout=True, invent=0.0, length=length, plot=rng.choice(PLOTS)))
    story.text = story.tell()
    return story


def facts(story: Story) -> list[tuple[str, str, str]]:
    """(sort, question, text that a right answer holds) for a told story."""
    first = story.episodes[0]
    kind = story.kind
    rows = [
        ("name", f"What was the {kind}'s name?", story.name),
        ("where", f"Where did {story.name} live?", first["at"]),
    ]
    if first["plot"] in HELPED:
        rows.append(("helper", f"Who helped the {kind}?", first["pkind"]))
    if first["plot"] in ("wish", "make", "journey", "contest", "rescue"):
        rows.append(("want", f"What did the {kind} want?", first["noun"]))
    why = "took" if first["plot"] == "sorry" else story.fill(first["why"])
    rows.append(("why", f"Why did the {kind} feel {first['feel']}?", why))
    for ask, answer in questions(story):
        if answer.startswith(("Yes,", "No,")):
            rows.append(("yes/no", ask, answer.split(",")[0] + ","))
    return rows


def names(word: str, text: str) -> bool:
    """Whether a text has a word, or two words in a row, as such and not inside others."""
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=400, help="held-out documents for the loss")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--show", type=int, default=4, help="print this many stories of each temperature")
    args = parser.parse_args()
    model = Model(args.folder)
    report: dict[str, object] = {}
    if args.documents:
        loss = model.loss(args.documents)
        report |= {"loss": round(loss, 4), "perplexity": round(math.exp(loss), 3)}

    stories = [told(i) for i in range(args.requests)]
    asks = [request(s, s.rng.choice(["both", "both", "and"])) for s in stories]
    prompts = [render([{"role": "user", "content": a}], generate=True) for a in asks]
    for temperature in (0.0, 0.7):
        answers: list[tuple[str, bool]] = []
        for i in tqdm(range(0, len(prompts), args.batch), desc=f"stories at {temperature}"):
            answers += model.answer(prompts[i : i + args.batch], LIMIT, temperature)
        good = [
            names(s.kind, t) and names(s.episodes[0]["noun"], t)
            for s, (t, _) in zip(stories, answers, strict=True)
        ]
        report[f"on topic at {temperature}"] = round(sum(good) / len(good), 3)
        report[f"ended at {temperature}"] = round(sum(e for _, e in answers) / len(answers), 3)
        for i in range(args.show):
            print(f"\n[{temperature}] {asks[i]}\n{answers[i][0]}\n")
        for a, g, t in zip(asks, good, answers, strict=True):
            if not g or not t[1]:
                print(f"MISS [{temperature}] {a}\n  {t[0][:400]}")

    print(json.dumps(report), flush=True)
    rows: list[tuple[str, str, str]] = []
    prompts = []
    for story, ask in zip(stories[:80], asks, strict=False):
        for sort, question, key in facts(story):
            rows.append((sort, question, key))
            turns = [
                {"role": "user", "content": ask},
                {"role": "assistant", "content": story.text},
                {"role": "user", "content": question},
            ]
            prompts.append(render(turns, generate=True))
    right: dict[str, list[bool]] = {}
    for i in tqdm(range(0, len(prompts), args.batch), desc="questions"):
        for (sort, _, key), (text, _) in zip(
            rows[i : i + args.batch], model.answer(prompts[i : i + args.batch], 40, 0.0), strict=True
        ):
            right.setdefault(sort, []).append(key.lower() in text.lower())
    report |= {f"answers: {k}": f"{sum(v)}/{len(v)}" for k, v in sorted(right.items())}
    every = [x for v in right.values() for x in v]
    report["answers: all"] = round(sum(every) / len(every), 3)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
