"""Builds one coherent story, and the facts for questions about it, from a seeded generator."""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass, field

from tools.tale import plots as pl
from tools.tale import words as w

CHOICE = re.compile(r"\[([^\[\]]*)\]")
KEY = re.compile(r"\{(\w+)\}")
ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])(?!(?:uni|use|uku|one|eu)[a-z]*)")
SENTENCE = re.compile(r"(^|[.!?] )([a-z])")
PLOTS = ["wish", "make", "journey", "contest", "rescue", "sorry", "lost", "share"]
PLOT_WEIGHTS = [8, 3, 3, 3, 3, 3, 3, 3]


def expand(rng: random.Random, text: str) -> str:
    """Resolve every `[one|two]` choice."""
    while "[" in text:
        text = CHOICE.sub(lambda m: rng.choice(m.group(1).split("|")), text)
    return text


def polish(text: str) -> str:
    """Articles, capitals after `^` and at sentence starts."""
    text = ARTICLE.sub(r"\1n ", text)
    text = re.sub(r"\^(.)", lambda m: m.group(1).upper(), text)
    return SENTENCE.sub(lambda m: m.group(1) + m.group(2).upper(), text)


def held_out(kind: str, thing: str) -> bool:
    """Whether this hero and thing pair is kept for evaluation only (one pair in ten)."""
    return hashlib.sha256(f"{kind}/{thing}".encode()).digest()[0] % 10 == 0


def nonsense(rng: random.Random) -> str:
    """A made-up noun."""
    return "".join(rng.choice(w.SYLLABLES) for _ in range(rng.randint(2, 3)))


def pronouns(gender: str) -> tuple[str, str, str]:
    """Subject, object and possessive."""
    return ("she", "her", "her") if gender == "f" else ("he", "him", "his")


def pick_gender(rng: random.Random, kind: str, prefer: str = "") -> str:
    if kind in w.FEMALE:
        return "f"
    if kind in w.MALE:
        return "m"
    return prefer if prefer and rng.random() < 0.8 else rng.choice("fm")


def pick_name(rng: random.Random, gender: str, invent: float = 0.03) -> str:
    if rng.random() < invent:
        return nonsense(rng).capitalize()
    return rng.choice(w.SHE_NAMES if gender == "f" else w.HE_NAMES)


def pick_hero(rng: random.Random, invent: float = 0.05) -> str:
    roll = rng.random()
    if roll < invent:
        return nonsense(rng)
    if roll < invent + 0.17:
        return rng.choice(w.RARE_HEROES)
    return rng.choice(w.ANIMALS if rng.random() < 0.8 else w.PEOPLE)


def pick_thing(rng: random.Random, invent: float = 0.05) -> tuple[str, str]:
    """A thing and its class."""
    roll = rng.random()
    if roll < invent:
        return nonsense(rng), "other"
    if roll < invent + 0.05:
        return rng.choice(w.RARE_FOOD), "food"
    if roll < invent + 0.17:
        return rng.choice(w.RARE_THINGS), "other"
    group = rng.choice(list(w.THINGS))
    return rng.choice(w.THINGS[group]), group


@dataclass
class Wishes:
    """What a request or a system prompt fixes about a story; empty means free."""

    kind: str = ""
    name: str = ""
    gender: str = ""
    thing: str = ""
    place: str = ""
    plot: str = ""
    length: str = ""  # short, normal, long, epic
    moral: bool | None = None
    the_end: bool | None = None
    greeting: str = ""
    closing: str = ""
    opening: bool = True
    once: bool = False
    invent: float = 0.05
    heldout: bool = False


@dataclass
class Story:
    """One story under construction, with the facts that its sentences must keep."""

    rng: random.Random
    wishes: Wishes
    refs: dict[str, str] = field(default_factory=dict)
    paragraphs: list[list[str]] = field(default_factory=lambda: [[]])
    used: set[str] = field(default_factory=set)
    episodes: list[dict[str, str]] = field(default_factory=list)
    moral: str = ""
    opening: str = ""
    text: str = ""

    def __post_init__(self) -> None:
        rng, want = self.rng, self.wishes
        self.length = want.length or rng.choices(["short", "normal", "long"], [3, 5, 3])[0]
        self.kind = want.kind
        while True:
            kind = want.kind or pick_hero(rng, want.invent)
            thing, group = self._thing(want.thing)
            if held_out(kind, thing) == want.heldout or (want.kind and want.thing):
                break
        self.kind, self.first_thing, self.group = kind, thing, group
        self.gender = want.gender or pick_gender(rng, kind)
        self.name = want.name or pick_name(rng, self.gender, want.invent * 0.7)
        self.place = want.place or rng.choice(list(w.PLACES))
        self.mood = rng.choice(["happy", "cheerful", "friendly", "kind", "gentle", "funny", "polite"])
        self.spots = w.PLACES[self.place][1][:]
        rng.shuffle(self.spots)
        he, him, his = pronouns(self.gender)
        self.refs = {
            "N": self.name,
            "kind": kind,
            "he": he,
            "him": him,
            "his": his,
            "at": w.PLACES[self.place][0],
            "place": self.place,
            "goal": self.spots[2],
            "look": rng.choice(w.HERO_LOOKS),
            "mood": self.mood,
        }

    def _thing(self, noun: str) -> tuple[str, str]:
        if not noun:
            return pick_thing(self.rng, self.wishes.invent)
        for group, nouns in w.THINGS.items():
            if noun in nouns:
                return noun, group
        return noun, "food" if noun in w.RARE_FOOD else "other"

    def fill(self, template: str) -> str:
        """Resolve choices and keys of a template and polish the result."""
        rng = self.rng

        def ref(match: re.Match[str]) -> str:
            key = match.group(1)
            if key == "h":
                return self.name if rng.random() < 0.6 else f"the {self.kind}"
            if key == "spot":
                self.spots[0], self.spots[1] = self.spots[1], self.spots[0]
                return self.spots[0]
            return self.refs[key]

        text = expand(rng, template)
        while "{" in text or "[" in text:
            text = expand(rng, KEY.sub(ref, text))
        return polish(text)

    def say(self, templates: list[str], chance: float = 1.0) -> None:
        """Add one not yet used template, with the given probability."""
        if chance < 1.0 and self.rng.random() >= chance:
            return
        fresh = [t for t in templates if t not in self.used] or templates
        template = self.rng.choice(fresh)
        self.used.add(template)
        self.paragraphs[-1].append(self.fill(template))

    def extra(self, templates: list[str], often: float = 0.5) -> None:
        """Add an optional sentence: rare in short stories, usual in long ones."""
        chance = {"short": 0.12, "normal": 0.5, "long": 0.95, "epic": 0.6}[self.length]
        self.say(templates, min(1.0, chance * often * 2))

    def part(self) -> None:
        if self.paragraphs[-1]:
            self.paragraphs.append([])

    # The helper -----------------------------------------------------------------

    def meet_helper(self, pool: list[str]) -> None:
        rng = self.rng
        options = [k for k in pool if k != self.kind]
        kind = rng.choice(options)
        gender = pick_gender(rng, kind, "m" if self.gender == "f" else "f")
        name = ""
        if rng.random() < 0.45:
            while not name or name == self.name:
                name = pick_name(rng, gender, 0.0)
        look = rng.choice(w.HELPER_LOOKS)
        phe, phim, phis = pronouns(gender)
        self.refs |= {
            "p": f"the {kind}",
            "P": name or f"dear {kind}",
            "pkind": kind,
            "pname": name,
            "ap": f"a {look} {kind} named {name}" if name else f"a {look} {kind}",
            "phe": phe,
            "phim": phim,
            "phis": phis,
        }

    # Episodes -------------------------------------------------------------------

    def episode(self, plot: str, thing: str, group: str, first: bool) -> None:
        rng, refs = self.rng, self.refs
        looks = rng.choice(w.THING_LOOKS) + " " if rng.random() < 0.2 and " " not in thing else ""
        owner = rng.choice(
            [
                k
                for k in [
                    "king",
                    "queen",
                    "miller",
                    "giant",
                    "witch",
                    "old badger",
                    "grumpy bear",
                    "proud peacock",
                    "grumpy goat",
                ]
                if self.kind not in k
            ]
        )
        refs |= {
            "thing": looks + thing,
            "the_thing": f"the {thing}",
            "noun": thing,
            "feel": rng.choice(["sad", "worried", "unhappy", "upset", "sad"]),
            "time": rng.choice(w.TIMES),
            "weather": rng.choice(w.WEATHER),
            "spot_owner": f"the {owner}",
        }
        refs["sky"] = self.fill(pl.SKIES[refs["weather"]]).lower()
        {
            "wish": self.plot_wish,
            "make": self.plot_make,
            "journey": self.plot_journey,
            "contest": self.plot_contest,
            "rescue": self.plot_rescue,
            "sorry": self.plot_sorry,
            "lost": self.plot_lost,
            "share": self.plot_share,
        }[plot](group)
        if not first:
            self.moral = ""
        theme = "help" if plot == "wish" else plot
        self.moral = self.moral or rng.choice(pl.MORALS[theme])
        self.episodes.append(dict(refs) | {"plot": plot})

    def want(self, group: str) -> None:
        self.say(pl.WANTS)
        self.extra(pl.REASONS[group], 0.6)

    def meet(self) -> None:
        """Meet the helper; a question is answered, and a plea in short."""
        self.say(pl.MEETS)
        if "can you help me" not in self.paragraphs[-1][-1] or self.rng.random() < 0.6:
            self.say(pl.REPLIES)

    def help_with(self, trouble: pl.Trouble, group: str) -> None:
        """The common middle: trouble, feeling, helper, solution, thanks and use."""
        self.meet_helper([k for k in trouble.helpers if k not in self.refs["spot_owner"]])
        self.say(trouble.setup)
        self.refs["why"] = trouble.why
        self.extra(pl.SAD, 0.7)
        if trouble not in (pl.JOURNEY, pl.CONTEST):
            self.extra(pl.TRIES)
        self.part()
        self.meet()
        self.say(trouble.solve)
        self.refs["helped"] = trouble.helped
        self.extra(pl.THANKS, 0.7)
        self.part()
        self.extra(pl.USES[group], 0.7)
        self.say(pl.HAPPY)
        self.extra(pl.HAPPY, 0.3)

    def plot_wish(self, group: str) -> None:
        self.want(group)
        self.extra(pl.WEATHERS, 0.4)
        self.refs["my_trouble"] = "I want a {thing} so much, but I cannot get it"
        self.help_with(self.rng.choice(pl.WISH_TROUBLES), group)
        self.refs["end"] = "{h} got the {thing}[| at last| in the end][, and {he} was happy||]"

    def plot_make(self, group: str) -> None:
        self.want(group)
        self.refs["my_trouble"] = "I tried to make a {thing}, but it went wrong"
        self.help_with(pl.MAKE, group)
        self.refs["end"] = "{h} made a fine {thing} with the help of {p}"

    def plot_journey(self, group: str) -> None:
        self.want(group)
        other = self.rng.choice([p for p in w.PLACES if p != self.place])
        self.refs["at2"], self.refs["goal"] = w.PLACES[other][0], w.PLACES[other][1][0]
        self.say(pl.JOURNEY_SETUP)
        self.part()
        self.say(pl.JOURNEY_STEPS)
        self.extra(pl.JOURNEY_STEPS)
        self.extra(pl.JOURNEY_STEPS, 0.3)
        self.refs["my_trouble"] = "I am looking for a {thing}, and I lost my way"
        self.help_with(pl.JOURNEY, group)
        self.refs["end"] = "{h} found the {thing} {at2}"

    def plot_contest(self, group: str) -> None:
        self.want(group)
        name = self.rng.choice(list(pl.CONTESTS))
        deed, fail, skill = pl.CONTESTS[name]
        self.refs |= {"contest": name, "deed": deed, "fail": expand(self.rng, fail), "skill": skill}
        self.say(pl.CONTEST_SETUP)
        self.refs["my_trouble"] = "I want to win, but I am not good enough"
        self.help_with(pl.CONTEST, group)
        self.refs["end"] = "{h} won the {contest} and got the {thing}"

    def plot_rescue(self, group: str) -> None:
        rng = self.rng
        self.want(group)
        self.extra(pl.WEATHERS, 0.3)
        peril = rng.choice(list(pl.RESCUES))
        pool = [
            k
            for k in w.FRIENDS
            if not (peril.startswith("fell") and k in ("duck", "frog", "otter", "beaver"))
        ]
        self.meet_helper(pool)
        self.refs["feel"] = rng.choice(["afraid", "scared", "worried"])
        self.refs |= {"peril": peril, "save": expand(rng, pl.RESCUES[peril])}
        self.part()
        self.say(pl.RESCUE_SETUP)
        self.extra(pl.RESCUE_FEAR)
        self.say(pl.RESCUE_DO)
        self.part()
        self.say(pl.RESCUE_REWARD)
        self.extra(pl.USES[group], 0.5)
        self.say(pl.HAPPY)
        self.refs["why"] = "{p} {peril}"
        self.refs["end"] = "{h} saved {p} and got a {thing} as a present"

    def plot_sorry(self, group: str) -> None:
        self.meet_helper(w.FRIENDS + w.WISE)
        self.refs["feel"] = self.rng.choice(["sorry", "bad", "sad", "ashamed"])
        self.extra(pl.WANTS, 0.5)
        self.say(pl.SORRY_SETUP)
        if group == "food":
            self.say(["But {the_thing} [fell into the mud|fell on the ground]."])
        else:
            self.say(pl.SORRY_BREAK_WEAR if group == "wear" else pl.SORRY_BREAK)
        self.say(pl.SORRY_FEEL)
        self.part()
        self.say(pl.SORRY_TELL)
        if group == "food":
            self.say(
                [
                    '{p} was quiet for a moment. "I forgive you," {phe} said. Together they made'
                    " a new {noun}, and then they shared it.",
                    '"Thank you for telling me," said {p}. They made a new {noun} and ate it together.',
                ]
            )
        else:
            self.say(pl.SORRY_END)
        self.say(pl.HAPPY)
        self.refs["why"] = "{he} took the {thing} without asking[| and spoiled it]"
        self.refs["end"] = "{h} said sorry, and {p} forgave {him}"

    def plot_lost(self, group: str) -> None:
        self.meet_helper(w.FINDERS + w.FRIENDS)
        self.say(pl.LOST_HAVE)
        self.say(pl.LOST_SETUP)
        self.extra(pl.SAD, 0.7)
        self.part()
        self.say(pl.LOST_SEARCH)
        self.extra(pl.LOST_SEARCH)
        self.refs["my_trouble"] = "I lost my {noun}"
        self.meet()
        self.say(pl.LOST_FOUND)
        self.extra(pl.THANKS)
        self.part()
        self.extra(pl.USES[group], 0.4)
        self.say(pl.HAPPY)
        self.refs["why"] = "{he} lost {his} {thing}"
        self.refs["helped"] = "[helped {him} find|found] the {thing}"
        self.refs["end"] = "{h} got {his} {thing} back"

    def plot_share(self, group: str) -> None:
        self.meet_helper(w.FRIENDS)
        self.refs["feel"] = self.rng.choice(["lonely", "sad", "alone and sad"])
        self.say(pl.SHARE_HAVE)
        self.extra(pl.WEATHERS, 0.4)
        self.say(pl.SHARE_ASK_FOOD if group == "food" else pl.SHARE_ASK)
        self.say(pl.SHARE_LONELY)
        self.part()
        self.say(pl.SHARE_TURN)
        self.say(pl.SHARE_END)
        self.say(pl.HAPPY)
        self.refs["why"] = "{he} did not want to share the {thing}"
        self.refs["end"] = "{h} shared the {thing} with {p}"

    # The whole ------------------------------------------------------------------

    def tell(self) -> str:
        """Build the story and return its text."""
        rng, want = self.rng, self.wishes
        if want.opening:
            self.say(pl.OPENINGS[:1] if want.once else pl.OPENINGS)
            self.opening = self.paragraphs[0][0]
        self.extra(pl.DETAILS, 0.6)
        self.extra(pl.DETAILS, 0.25)
        plot = want.plot or rng.choices(PLOTS, PLOT_WEIGHTS)[0]
        self.episode(plot, self.first_thing, self.group, True)
        if self.length == "epic":
            for _ in range(rng.randint(1, 2)):
                self.part()
                self.say(pl.NEXT_EPISODES)
                while True:
                    thing, group = pick_thing(rng, 0.0)
                    if thing != self.first_thing and held_out(self.kind, thing) == want.heldout:
                        break
                self.refs["goal"] = self.spots[2]
                self.episode(rng.choices(PLOTS, PLOT_WEIGHTS)[0], thing, group, False)
        if want.moral or (want.moral is None and rng.random() < 0.2):
            self.paragraphs[-1].append(
                f"{rng.choice(['The moral of the story is:', 'The moral is:'])} {self.moral}"
            )
        if want.the_end or (want.the_end is None and rng.random() < 0.12):
            self.paragraphs[-1].append("The end.")
        joiner = "\n\n" if self.length in ("long", "epic") or rng.random() < 0.15 else " "
        body = joiner.join(" ".join(p) for p in self.paragraphs if p)
        return " ".join(x for x in [want.greeting, body, want.closing] if x)
