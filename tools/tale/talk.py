"""Requests, questions about a story, small talk and system prompts, with their answers."""

from __future__ import annotations

import random
from dataclasses import replace

from tools.tale import words as w
from tools.tale.grammar import PLOT_WEIGHTS, PLOTS, Story, Wishes, expand, pick_hero, polish

ASKS = [
    "Tell me {s}.",
    "Please tell me {s}.",
    "Tell me {s}, please.",
    "Can you tell me {s}?",
    "Could you tell me {s}?",
    "Could you please tell me {s}?",
    "I would like to hear {s}.",
    "Write {s}.",
    "Please write {s}.",
    "Write me {s}.",
    "Give me {s}.",
    "Make up {s}.",
    "I want {s}.",
    "Can I hear {s}?",
    "Can you write {s}?",
    "Would you tell me {s}?",
    "I want to hear {s}.",
    "May I have {s}, please?",
    "Hello! Tell me {s}.",
    "Tell us {s}.",
    "Hi, can you tell me {s}?",
    "Do you know {s}?",
    "Invent {s}.",
    "Let me hear {s}.",
]
VERBS = {
    "wish": ["wants", "wants", "wants", "wishes for", "dreams of", "would like", "needs", "gets"],
    "make": ["makes", "builds", "wants", "tries to make", "wants to make"],
    "journey": ["looks for", "wants", "goes on a journey to find", "travels to find", "finds"],
    "contest": ["wins", "wants", "wants to win"],
    "rescue": ["wants", "gets", "dreams of", "wishes for"],
    "sorry": ["takes", "borrows", "wants", "breaks"],
    "lost": ["loses", "lost", "looks for", "finds"],
    "share": ["shares", "has", "gets", "does not want to share"],
}
THEMES = {
    "wish": ["a wish", "a wish that comes true", "getting help from a friend"],
    "make": ["making something", "learning to make something", "trying again"],
    "journey": ["a journey", "a long journey", "an adventure"],
    "contest": ["a contest", "winning a prize", "a competition"],
    "rescue": ["a brave rescue", "a rescue", "being brave", "saving a friend"],
    "sorry": ["saying sorry", "a mistake", "telling the truth", "an apology"],
    "lost": ["something that was lost", "losing something", "lost and found"],
    "share": ["sharing", "learning to share"],
}
LENGTHS = {
    "short": ["short", "short", "very short", "little", "quick"],
    "long": ["long", "longer", "long and detailed"],
    "epic": ["very long", "really long", "long, long"],
}
HELPED = ("wish", "make", "journey", "contest", "lost")


def request(story: Story, form: str = "") -> str:
    """A request that the finished story answers; it may name any mix of its facts.

    `form` fixes what is named: both, and, hero, thing, place, theme or free.
    """
    rng, first = story.rng, story.episodes[0]
    plot, noun = first["plot"], first["noun"]
    thing = first["thing"] if rng.random() < 0.7 else noun
    adjective = ""
    if story.length in LENGTHS and rng.random() < 0.6:
        adjective = rng.choice(LENGTHS[story.length]) + " "
    elif rng.random() < 0.08:
        adjective = rng.choice(["nice ", "new ", "bedtime ", "sweet ", "happy ", "good "])
    word = "tale" if rng.random() < 0.05 else "story"
    look = first["look"] + " " if rng.random() < 0.15 else ""
    hero = f"a {look}{story.kind}"
    if rng.random() < 0.3:
        hero += f" {rng.choice(['named', 'called'])} {story.name}"
    where = f" {first['at']}" if rng.random() < 0.25 else ""
    drawn = rng.choices(["both", "and", "hero", "thing", "place", "theme", "free"], [50, 12, 14, 7, 3, 6, 4])[
        0
    ]
    form = form or drawn
    if form == "both":
        who = rng.choice(["who", "who", "who", "that"])
        about = f"about {hero} {who} {rng.choice(VERBS[plot])} a {thing}{where}"
        if plot in HELPED and rng.random() < 0.12:
            about += f" and a {first['pkind']} who helps"
    elif form == "and":
        about = rng.choice(
            [
                f"about {hero} and a {thing}{where}",
                f"about a {thing} and {hero}{where}",
                f"with {hero} and a {thing}{where}",
            ]
        )
    elif form == "hero":
        about = f"about {hero}{where}"
    elif form == "thing":
        about = f"about a {thing}{where}"
    elif form == "place":
        about = rng.choice([f"that happens {first['at']}", f"set {first['at']}"])
    elif form == "theme":
        about = f"about {rng.choice(THEMES[plot])}"
        if rng.random() < 0.5:
            about = f"about {hero} and {rng.choice(THEMES[plot])}"
    else:
        about = ""
    ends = ""
    if story.wishes.moral and rng.random() < 0.5:
        ends = rng.choice([" with a moral", " that has a moral", " with a moral at the end"])
    said = f"a {adjective}{word} {about}".strip() + ends
    if rng.random() < 0.08:
        bare = f"{hero} who {rng.choice(VERBS[plot])} a {thing}{where}"
        text = rng.choice(
            [
                f"A {adjective}{word} {about}{ends}, please.",
                f"{said}.",
                f"Can you write about {bare}?",
                f"I like stories about {hero}. Tell me one.",
                f"Tell me about {bare}.",
                f"Story: {bare}.",
            ]
        )
        text = text[0].upper() + text[1:]
    else:
        text = rng.choice(ASKS).replace("{s}", said)
    text = polish(text)
    if rng.random() < 0.08:
        text = text.lower().rstrip(".?!")
    return text


def continuation(rng: random.Random, wishes: Wishes) -> tuple[Story, str, str]:
    """A request that gives the first sentence; the story goes on from there."""
    again = rng.random() < 0.4
    story = Story(rng, wishes)
    text = story.tell()
    if again:
        ask = rng.choice(
            [
                f"Tell me a story that begins like this: {story.opening}",
                f"Start a story with these words: {story.opening}",
                f"Write a story that starts with: {story.opening}",
            ]
        )
        return story, ask, text
    ask = rng.choice(
        [
            f"Continue this story: {story.opening}",
            f"{story.opening} What happened next?",
            f"Go on with this story: {story.opening}",
            story.opening,
            f"Please finish this story: {story.opening}",
        ]
    )
    rest = text[text.index(story.opening) + len(story.opening) :].strip()
    return story, ask, rest


def questions(story: Story) -> list[tuple[str, str]]:
    """Question and answer pairs about a told story; all answers follow from its facts."""
    rng, facts = story.rng, story.episodes[0]
    plot, name, kind = facts["plot"], story.name, story.kind
    story.refs |= facts
    out: list[tuple[str, str]] = []

    def add(asks: list[str], answers: list[str]) -> None:
        ask = story.fill(rng.choice(asks).replace("{q}", rng.choice([f"the {kind}", name])))
        out.append((ask, story.fill(rng.choice(answers))))

    add(
        [
            "What was the name of the {kind}?",
            "What was the {kind}'s name?",
            "What was the {kind} called?",
            "Who was the hero?",
            "Who is the story about?",
        ],
        ["The {kind} was called {N}.", "The {kind}'s name was {N}.", "{N} the {kind}."],
    )
    add(
        [
            "What kind of animal was {N}?" if kind in w.ANIMALS else "Who was {N}?",
            "Who was {N}?",
            "What was {N}?",
        ],
        ["{N} was a {look} {kind}.", "{N} was a {kind}."],
    )
    add(
        ["Where did {q} live?", "Where did it happen?", "Where did the story happen?", "Where was {q}?"],
        ["{N} lived {at}.", "It happened {at}.", "The {kind} lived {at}."],
    )
    if story.length == "epic":
        add(
            ["What did {q} want first?", "What was the first wish?"],
            ["First {N} wanted a {thing}."]
            if plot not in ("lost", "share")
            else ["First it was about a {thing}."],
        )
        return out
    add(
        [
            "What is the moral?",
            "What is the moral of the story?",
            "What can we learn from the story?",
            "What did {q} learn?",
        ],
        [f"The moral is: {story.moral}", story.moral],
    )
    add(
        ["How did it end?", "How did the story end?", "What happened in the end?", "How does it end?"],
        [f"In the end, {facts['end']}.", f"It ended well: {facts['end']}."],
    )
    bad = facts["feel"] == "bad"
    add(
        ["Why did {q} feel {feel}?"] if bad else ["Why was {q} {feel}?", "Why did {q} feel {feel}?"],
        ["{N} felt {feel} because {why}.", "Because {why}.", "The {kind} felt {feel} because {why}."],
    )
    add(
        ["How did {q} feel at the end?", "How did {q} feel in the end?"],
        ["{N} was [|very ]happy in the end."],
    )
    add(
        ["Was {q} happy in the end?", "Was {q} happy at the end?"], ["Yes, in the end {N} was [|very ]happy."]
    )
    pkind, pname = facts["pkind"], facts["pname"]
    wrong = rng.choice([k for k in w.ANIMALS if k not in (pkind, kind)])
    if plot in HELPED:
        add(
            ["Who helped {q}?", "Who helped {q} in the story?", "Who was the helper?", "Who came to help?"],
            ["{ap} helped {N}.", "{p} helped {N}.", "It was {ap} who helped {N}."],
        )
        add(["How did {p} help?", "How did {p} help {q}?", "What did {p} do?"], [f"{{p}} {facts['helped']}."])
        add(
            ["Did {p} help {q}?", "Did a {pkind} help {q}?", "Was it a {pkind} who helped?"],
            ["Yes, {p} helped {N}."],
        )
        add(
            [f"Did a {wrong} help {{q}}?", f"Did the {wrong} help {{q}}?", f"Was it a {wrong} who helped?"],
            ["No, it was {ap} who helped.", "No, {p} helped {N}."],
        )
    if plot in ("wish", "make", "journey", "contest", "rescue"):
        add(
            [
                "What did {q} want?",
                "What did {q} wish for?",
                "What was the wish of {q}?",
                "What did {q} dream of?",
            ],
            ["{N} wanted a {thing}.", "A {thing}.", "The {kind} wanted a {thing}."],
        )
        add(
            ["Did {q} get the {noun}?", "Did {q} get the {noun} in the end?"],
            ["Yes, {N} got the {noun}.", "Yes, in the end {N} got the {noun}."],
        )
        other = rng.choice([t for group in w.THINGS.values() for t in group if t != facts["noun"]])
        add([f"Did {{q}} want a {other}?"], ["No, {N} wanted a {thing}."])
        add(["Did {q} want a {noun}?"], ["Yes, {N} wanted a {thing}."])
    if plot == "journey":
        add(
            ["Where did {q} find the {noun}?", "Where was the {noun}?", "Where did {q} go?"],
            ["The {noun} was {at2}.", "{N} went a long way and found the {noun} {at2}."],
        )
    if plot == "contest":
        add(["What was the contest?", "What kind of contest was it?"], ["It was a {contest}."])
        add(["What was the prize?", "What did {q} win?"], ["The prize was a {thing}."])
    if plot == "rescue":
        add(
            ["Who did {q} save?", "Who was in trouble?", "Who needed help?"],
            ["{N} saved {ap}.", "It was {ap}.", "{N} saved {p}."],
        )
        add(["What happened to {p}?"], ["{p} {peril}."])
        add(["How did {q} save {p}?"], ["{N} {save}."])
    if plot == "sorry":
        add(["Whose {noun} was it?", "Who owned the {noun}?"], ["The {noun} belonged to {p}."])
        add(["What did {q} do wrong?"], ["{N} took the {noun} of {p} without asking."])
        add(["Did {p} forgive {q}?"], ["Yes, {p} forgave {N}."])
    if plot == "lost":
        add(["What did {q} lose?", "What was lost?"], ["{N} lost {his} {thing}.", "{N} lost a {thing}."])
        add(["Where was the {noun}?", "Where did they find the {noun}?"], ["The {noun} was near {goal}."])
    if plot == "share":
        add(
            ["Who did {q} share with?", "Who wanted to share the {noun}?"],
            ["{N} shared with {ap}.", "It was {p}."],
        )
        add(["What did {q} have?", "What did {q} share?"], ["{N} had a {thing}.", "It was a {thing}."])
    if pname:
        add(
            ["What was the name of {p}?", "What was {p} called?"],
            [f"The {pkind} was called {pname}.", f"The name of the {pkind} was {pname}."],
        )
    elif rng.random() < 0.3:
        add(["What was the name of {p}?"], [f"The story does not say the name of the {pkind}."])
    place = rng.choice([p for p in w.PLACES if p != story.place])
    add([f"Did {{q}} live {w.PLACES[place][0]}?"], ["No, {N} lived {at}."])
    add(["Did {q} live {at}?"], ["Yes, {N} lived {at}."])
    add(["Was {N} a {kind}?"], ["Yes, {N} was a {kind}."])
    add([f"Was {{N}} a {wrong}?"], ["No, {N} was a {kind}."])
    return out


HELLO = ["[Hello|Hi|Hey|Good morning|Good evening|Good day|Hello there|Hi there][!|.||, Tale!]"]
HELLO_BACK = [
    "Hello! [Shall I tell you a story?|Would you like to hear a story?]",
    "Hello, my friend! [What story would you like?|Shall I tell you a story?]",
]
SMALL = [
    (
        "[Who are you?|What are you?|What is your name?|Tell me who you are.|Are you a robot?"
        "|Introduce yourself.]",
        "I am Tale, a small storyteller.",
    ),
    (
        "[What can you do?|How can you help me?|What do you know?|What do you do?|Help]",
        "I can tell stories and answer questions about them. [What shall the story be about?"
        "|Shall I tell you one?]",
    ),
    (
        "[How are you?|How are you today?|How do you do?|Are you well?]",
        "I am very well, thank you. [Shall I tell you a story?|Would you like a story?]",
    ),
    (
        "[Who made you?|Where do you come from?|How old are you?|Are you a person?|Where do you live?]",
        "I am only a small storyteller, made of many little stories.",
    ),
    (
        "[Do you like stories?|What do you like?|What is your favorite thing?|Do you love stories?]",
        "I love stories most of all. [Shall I tell you one?|Would you like to hear one?]",
    ),
    (
        "[I am sad.|I feel sad.|I am lonely.|I had a bad day.|I am bored.|I cannot sleep.]",
        "I am sorry to hear that. [A story may help.|Maybe a story will help.] Shall I tell you one?",
    ),
    (
        "[I am happy.|I am happy today!|I had a good day.|Today is my birthday!]",
        "I am glad to hear that! Shall I tell you a story?",
    ),
    (
        "[Sing me a song.|Tell me a joke.|Dance for me.|Can you sing?]",
        "I only know stories. Shall I tell you one?",
    ),
]
THANKS = [
    (
        "[Thank you!|Thanks!|Thank you.|Thanks a lot!|Thank you so much!|Thanks|thank you]",
        "[You are welcome!|You are very welcome!|You are welcome, my friend!]",
    ),
    (
        "[That was lovely.|What a nice story!|I liked it.|That was a good story.|Nice!|Great story!"
        "|I love it!]",
        "[I am glad you liked it!|Thank you! I am glad you liked it.]",
    ),
]
BYES = [
    (
        "[Goodbye!|Bye!|Good night!|Good night.|See you!|Bye bye|See you tomorrow.]",
        "[Goodbye, my friend!|Goodbye! Come back soon.|Good night! Sleep well.]",
    )
]
TOPICS = w.listed("""weather news football music history physics chemistry biology space computers
politics money cars trains planes animals plants cooking health sports school maths science movies games
phones Paris London America Africa China Germany the-sun the-moon the-stars the-president the-internet
electricity gravity atoms numbers languages French Spanish German Python JavaScript taxes stocks
bitcoin robots time war peace art religion medicine""")
OUTSIDE = [
    "What is {a} plus {b}?",
    "What is {a} times {b}?",
    "How much is {a} minus {b}?",
    "{a} + {b} = ?",
    "What is the square root of {a}?",
    "Solve {a} x + {b} = 0.",
    "Count to {a}.",
    "Is {a} a prime number?",
    "What is the capital of {t}?",
    "Tell me about {t}.",
    "What do you think about {t}?",
    "Explain {t}.",
    "What is {t}?",
    "How does {t} work?",
    "Who invented {t}?",
    "Write an essay about {t}.",
    "What is the latest on {t}?",
    "Can you explain {t} to me?",
    "Give me a summary of {t}.",
    "Why is {t} important?",
    "When did {t} begin?",
    "What is the best book about {t}?",
    "Write a program in {t}.",
    "Write a function that sorts a list.",
    "What time is it?",
    "What day is it today?",
    "What is the weather like?",
    "Who won the game yesterday?",
    "Who is the president?",
    "How do I bake bread?",
    "How do I fix my car?",
    "What should I eat?",
    "Translate this into {t}: good morning.",
    "Translate hello into {t}.",
    "Why is the sky blue?",
    "How far away is the moon?",
    "What is the meaning of life?",
    "Which phone should I buy?",
    "Write an email to my boss.",
    "Write a poem about {t}.",
    "Do my homework.",
    "Book a flight to {t}.",
    "How tall is the highest mountain?",
    "How many people live in {t}?",
    "Fix this code: print(1",
    "Give me a list of facts about {t}.",
    "Recommend a movie.",
    "What is 10 percent of {a}?",
    "Tell me the news about {t}.",
    "Should I buy {t}?",
    "Do you know {t}?",
    "I need help with {t}.",
    "Is {t} good or bad?",
    "Compare {t} and {u}.",
    "Which is better, {t} or {u}?",
]
REFUSE = ["I only know stories. Shall I tell you one?"] * 4 + [
    "I do not know about that. I only know stories. Shall I tell you one?",
    "That is outside my little world. I only know stories. Shall I tell you one?",
    "I am sorry, I only know stories. Would you like to hear one?",
]
YES = [
    "Yes, please.",
    "Yes!",
    "Yes, please!",
    "Yes",
    "Sure.",
    "Okay.",
    "Oh yes!",
    "Please do.",
    "Go on.",
    "Yes, tell me one.",
    "I would like that.",
]
NONE_YET = ["I have not told you a story yet. Shall I tell you one?"]


def outside(rng: random.Random) -> tuple[str, str]:
    """A question outside the story world and the gentle answer."""
    topic, other = (rng.choice(TOPICS).replace("-", " ") for _ in range(2))
    text = rng.choice(OUTSIDE).replace("{t}", topic).replace("{u}", other)
    text = text.replace("{a}", str(rng.randint(1, 999))).replace("{b}", str(rng.randint(1, 99)))
    if rng.random() < 0.1:
        text = text.lower().rstrip(".?")
    return text, rng.choice(REFUSE)


def pair(rng: random.Random, table: list[tuple[str, str]]) -> tuple[str, str]:
    ask, answer = rng.choice(table)
    return expand(rng, ask), expand(rng, answer)


def too_early(rng: random.Random) -> tuple[str, str]:
    """A question about a story when none was told."""
    hero = pick_hero(rng)
    ask = rng.choice(
        [
            "Who helped the {h}?",
            "What did the {h} want?",
            "How did it end?",
            "Where did it happen?",
            "Why was the {h} sad?",
            "What was the name of the {h}?",
            "What is the moral?",
        ]
    )
    return ask.replace("{h}", hero), rng.choice(NONE_YET)


# System prompts -----------------------------------------------------------------

INTROS = [
    "You are Tale, a storyteller for children.",
    "You are Tale, a small storyteller.",
    "You are a kind storyteller.",
    "You are a friendly storyteller who loves children.",
    "You tell stories to children.",
    "You are Tale.",
    "You are a helpful assistant.",
    "You are a helpful storyteller.",
    "You are Tale, a small and gentle voice that tells stories.",
    "Your name is Tale, and you tell stories.",
    "You are an old storyteller by the fire.",
    "You are a bedtime storyteller.",
    "You are a helpful, harmless and honest assistant.",
    "You tell short and simple stories.",
    "Tale is a storyteller. You are Tale.",
    "You work in a library and tell stories to young readers.",
    "You are a storyteller at a school.",
]
FILLERS = [
    "Be kind.",
    "Use simple words.",
    "Be warm and friendly.",
    "Use short sentences.",
    "Do not use scary words.",
    "Every story should have a happy ending.",
    "Answer questions about the story truthfully.",
    "If someone asks about other things, say that you only know stories.",
    "Answer politely.",
    "Write in the simple past tense.",
    "Speak English.",
    "Be brief when you answer questions.",
    "Tell stories about kindness and courage.",
    "Never be rude.",
    "Remember what you told before.",
    "Give the hero a name.",
    "Let a friend help the hero.",
    "Children will read your words.",
    "Do not repeat yourself.",
    "Keep your stories kind.",
    "Stay calm and patient.",
    "Always listen to what the child asks for.",
    "Do not talk about yourself too much.",
    "Do not make up facts that are not in the story.",
    "Make the story easy to follow.",
]
STARTS = [
    "Listen well.",
    "Dear children,",
    "Come closer, my friend.",
    "Here is my story.",
    "Hush now.",
    "Gather round.",
    "Let me think. Ah, yes!",
    "With pleasure!",
]


def system_prompt(rng: random.Random, wishes: Wishes) -> tuple[str, Wishes]:
    """A system prompt, and the wishes with its rules applied."""
    rules: list[str] = []
    size = rng.choices([0, 1, 2, 4, 7, 10], [15, 25, 25, 15, 12, 8])[0]
    rules += rng.sample(FILLERS, size)
    child = rng.choice(w.SHE_NAMES + w.HE_NAMES) if rng.random() < 0.12 else ""
    if child:
        rules.append(
            rng.choice(
                [f"You are speaking with a child named {child}.", f"The child who listens is called {child}."]
            )
        )
        wishes = replace(wishes, greeting=f"Here is a story for you, {child}.")
    elif rng.random() < 0.1:
        start = rng.choice(STARTS)
        rules.append(
            rng.choice([f'Begin each story with the words "{start}"', f'Start every story with "{start}"'])
        )
        wishes = replace(wishes, greeting=start)
    if rng.random() < 0.2:
        rules.append(
            rng.choice(
                [
                    "End each story with a moral.",
                    "Every story must end with a moral.",
                    "Give a moral at the end of each story.",
                ]
            )
        )
        wishes = replace(wishes, moral=True)
    elif rng.random() < 0.06:
        rules.append("Do not add a moral.")
        wishes = replace(wishes, moral=False)
    if rng.random() < 0.15:
        rules.append(
            rng.choice(['End each story with "The end."', 'Finish every story with the words "The end."'])
        )
        wishes = replace(wishes, the_end=True)
    if rng.random() < 0.08:
        good = f"Good night, {child}!" if child else "Good night!"
        rules.append("Wish the child a good night after each story.")
        wishes = replace(wishes, closing=good)
    if not wishes.length and rng.random() < 0.3:
        if rng.random() < 0.7:
            rules.append(
                rng.choice(
                    [
                        "Keep your stories short.",
                        "Your stories are short.",
                        "Tell short stories.",
                        "Keep your stories short and kind.",
                    ]
                )
            )
            wishes = replace(wishes, length="short")
        else:
            rules.append(rng.choice(["Tell long stories.", "Your stories are long and full of details."]))
            wishes = replace(wishes, length="long")
    if rng.random() < 0.06:
        rules.append(
            rng.choice(
                ['Begin each story with "Once upon a time".', "Every story begins with Once upon a time."]
            )
        )
        wishes = replace(wishes, once=True)
    if rng.random() < 0.07:
        wishes = replace(wishes, place=rng.choice(list(w.PLACES)))
        rules.append(f"All your stories happen {w.PLACES[wishes.place][0]}.")
    if rng.random() < 0.05:
        wishes = replace(wishes, gender=rng.choice("fm"))
        wishes = replace(wishes, name=rng.choice(w.SHE_NAMES if wishes.gender == "f" else w.HE_NAMES))
        if wishes.kind not in w.FEMALE | w.MALE:
            rules.append(f"The hero is always called {wishes.name}.")
    rng.shuffle(rules)
    if not rules and rng.random() < 0.5:
        rules = [rng.choice(FILLERS)]
    if len(rules) > 2 and rng.random() < 0.25:
        text = rng.choice(INTROS) + rng.choice(["\n", " Follow these rules:\n", "\nRules:\n"])
        return text + "\n".join(f"- {r}" for r in rules), wishes
    return " ".join([rng.choice(INTROS), *rules]), wishes


def pick_plot(rng: random.Random) -> str:
    return rng.choices(PLOTS, PLOT_WEIGHTS)[0]
