"""Sentence templates of the plots.

A template may hold `[one|two]` choices, `{key}` references and `^`, which makes the next
letter a capital. Keys: `h` the hero (name or kind), `N` the hero's name, `kind`, `he`,
`him`, `his`; `p` the helper, `P` the helper's name where it has one, `ap` the helper at
its first mention, `phe`, `phim`, `phis`; `thing`, `the_thing` (varied), `at` and `spot`
for the place; `feel` the sad feeling.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.tale import words as w

OPENINGS = [
    "[Once upon a time|Once|Long ago|One day|Once upon a time|A long time ago|In the old days]"
    " [there was|there lived] a {look} {kind} named {N}. ^{he} lived {at}.",
    "[Once upon a time|Long ago|Once|Many years ago], a {look} {kind} named {N} lived {at}.",
    "[There was once|Once there was|There once lived] a {look} {kind} [named|called] {N} who lived {at}.",
    "{N} was a {look} {kind} who lived {at}.",
    "{at}[, not far away,|] [lived|there lived] a {look} {kind} named {N}.",
    "{N} the {kind} lived {at}. ^{he} was a {look} {kind}.",
    "This is [a story about|the story of|a tale about] {N}, a {look} {kind} who lived {at}.",
    "[Not so long ago|Far away|Once upon a time|One spring|One summer|One winter],"
    " there was a {look} {kind}. ^{his} name was {N}, and {he} lived {at}.",
    "[Every child|Everyone|Everybody] {at} knew {N}, the {look} {kind}.",
    "A {look} {kind} named {N} lived {at}[| with {his} mother| with {his} family| all alone].",
]

DETAILS = [
    "{he} [liked|loved] to [walk past|sit near|play near|look at] {spot}.",
    "[Every morning|Every evening|On quiet days|On warm days] {he} [sat|played|sang|rested] near {spot}.",
    "{he} was [always|often|usually] {mood} and [liked|loved] to [sing|dance|run|laugh|"
    "tell jokes|help others|ask questions|count the clouds].",
    "{his} favorite [place|spot] was near {spot}.",
    "[All the neighbors|Everyone|The others] [liked|loved] {him}, because {he} was {mood}.",
    "{he} had [kind|bright|brown|big|soft] eyes and a [warm|gentle|happy|small] voice.",
    "{he} [had many friends|had one good friend|knew every path], and {he} was [hardly ever|never] bored.",
]

WEATHERS = [
    "[It was|That was] a {weather} {time}.",
    "One {weather} {time}, {h} [woke up early|went outside|looked out|took a walk].",
    "The {time} was {weather}, and {sky}.",
    "On a {weather} {time}, {h} [went for a walk|walked about|stepped outside].",
]

SKIES = {
    "sunny": "[the birds were singing|the sky was blue]",
    "windy": "[the leaves danced in the air|the trees bent low]",
    "rainy": "[the drops fell on the roofs|there were puddles everywhere]",
    "cloudy": "[the sky was grey|the sun was hiding]",
    "snowy": "[everything was white|the snow lay deep]",
    "foggy": "[nobody could see far|the air was white and still]",
    "warm": "[the bees were humming|a soft wind was blowing]",
    "cold": "[the grass was stiff with frost|everyone stayed close to the fire]",
    "bright": "[the sky had no clouds|the light was golden]",
}

WANTS = [
    "{he} wanted a {thing} [more than anything|very much|so much|more than anything in the world].",
    "More than anything, {h} wanted a {thing}.",
    "There was one thing {he} [wished for|dreamed of]: a {thing}.",
    "{h} had [one big wish|a wish|one dream]. ^{he} wanted a {thing}.",
    "[Every night|Each night|Every day], {h} dreamed of a {thing}.",
    '"[I wish I had|How I wish I had|I want|If only I had] a {thing}," {h} said'
    "[| one day| every day| to {him}self].",
    "One day {h} saw a {thing} [in a picture|in a dream|at the fair], and from then on {he} wanted one too.",
]

REASONS: dict[str, list[str]] = {
    "toy": [
        "{he} wanted to play with it {at}.",
        '"I would play with it all day," {he} said.',
        "All {his} friends had one, and {he} wanted to play too.",
        "With a {thing}, {he} could play with the others.",
    ],
    "food": [
        "{he} was [hungry|very hungry], and {his} tummy was empty.",
        "{he} wanted to share it with {his} mother.",
        '"It would taste so good," {he} said.',
        "It was almost {his} birthday.",
    ],
    "wear": [
        "{he} wanted to wear it to the [big party|spring party|dance|fair].",
        '"I would look so fine," {he} said.',
        "{he} wanted to look nice for once.",
        "The nights were cold, and {he} had nothing nice to wear.",
    ],
    "tool": [
        "With a {thing}, {he} could [help everyone|do so many things|finish {his} work].",
        '"It would be so useful," {he} said.',
        "{he} needed it for {his} home.",
        "{his} old one was broken.",
    ],
    "music": [
        "{he} wanted to play songs for {his} friends.",
        '"Then I could play music every day," {he} said.',
        "{he} had so many songs in {his} head.",
        "{he} loved music.",
    ],
    "art": [
        "{he} wanted to give it to {his} [mother|best friend|grandmother].",
        '"I would look at it every day," {he} said.',
        "{he} loved pretty things.",
        "{he} wanted it for the long quiet evenings.",
    ],
    "treasure": [
        "{he} wanted to give it to {his} [mother|best friend|grandmother].",
        '"It would be the nicest thing in my home," {he} said.',
        "{he} loved pretty things.",
        "{he} thought it was the prettiest thing of all.",
    ],
    "other": [
        "{he} had dreamed of it for a long time.",
        '"It would make me so happy," {he} said.',
        "{he} thought about it day and night.",
        "Nobody {at} had one.",
    ],
}

USES: dict[str, list[str]] = {
    "toy": [
        "{h} played with {the_thing} until the sun went down.",
        "All afternoon {h} played with {the_thing}, and the others played too.",
        "{h} [played|laughed and played] with {the_thing} all day long.",
    ],
    "food": [
        "{h} shared {the_thing} with {p}, and it was delicious.",
        "{h} cut {the_thing} in two and gave one half to {p}.",
        "They sat down together and ate {the_thing}, down to the last crumb.",
    ],
    "wear": [
        "{h} [put on|tried on] {the_thing} and felt very grand.",
        "{h} wore {the_thing} [every day|all day long|to bed that night].",
        "Everyone said that {the_thing} looked lovely on {him}.",
    ],
    "tool": [
        "{h} used {the_thing} every day after that.",
        "{h} [carried|took] {the_thing} home and put it to good use.",
        "That same day {h} used {the_thing} to help a neighbor.",
    ],
    "music": [
        "{h} played {the_thing}, and everyone danced.",
        "That night {h} played a soft song on {the_thing}.",
        "{h} played {the_thing} while {p} sang along.",
    ],
    "art": [
        "{h} kept {the_thing} next to {his} bed.",
        "{h} showed {the_thing} to [everyone|all {his} friends].",
        "{h} looked at {the_thing} again and again.",
    ],
    "treasure": [
        "{h} kept {the_thing} in a safe place.",
        "{h} showed {the_thing} to [everyone|all {his} friends].",
        "{h} held {the_thing} up to the light and smiled.",
    ],
    "other": [
        "{h} showed {the_thing} to [everyone|all {his} friends].",
        "{h} was so proud of {the_thing}.",
        "{h} looked at {the_thing} again and again and smiled.",
    ],
}

SAD = [
    "{h} felt very {feel}.",
    "{h} was {feel}[| and sat down| and did not know what to do].",
    "This made {h} very {feel}.",
    "{h} sat near {spot} and felt {feel}.",
    "{h} was so {feel} that {he} [began to cry|could not eat|could not speak|sighed].",
    '"[Oh no!|Oh dear!|What now?|What can I do?]" said {h}. ^{he} felt {feel}.',
    "A tear rolled down {his} [cheek|face|nose]. ^{h} was {feel}.",
]

TRIES = [
    "{h} tried and tried, but it did not work.",
    "First {he} tried alone. It did not work.",
    "{h} thought about it all [day|night|morning], but {he} had no idea.",
    "{he} asked [the wind, but the wind|the moon, but the moon|the stars, but the stars] did not answer.",
    "{he} tried once, twice, three times. Nothing helped.",
    '"I will not give up," {he} said. But it was too hard to do alone.',
]

MEETS = [
    '[Just then|Then|After a while|Soon|A little later], {ap} came by. "[Why are you so {feel}|'
    'What is wrong|What is the matter|Why do you look so {feel}]?" asked {p}.',
    '{ap} heard {him} and came [closer|over|near]. "What is wrong, [my friend|little one|dear'
    '|{N}]?" asked {p}.',
    '[Just then|Luckily|At that moment], {h} met {ap}. "Can I help you?" asked {p}.',
    '{ap} was [passing by|resting near {spot}|sitting near {spot}] and saw {him}. "[You look'
    ' {feel}|You seem {feel}|Do not be {feel}]," said {p}. "[Tell me what happened.|Tell me all'
    ' about it.|What happened?]"',
    '[Then|At last|Soon] {h} went to {ap}. "Please, can you help me?" {h} asked.',
]

THANKS = [
    '"[Thank you|Thank you so much|Oh, thank you], {P}!" said {h}.',
    "{h} [thanked {p}|hugged {p}|thanked {p} again and again|smiled at {p}].",
    '"You are [a true friend|so kind|the best friend of all]," {h} told {p}.',
    '"How can I thank you?" asked {h}. "[Just be happy|Be kind to others too|Your smile is'
    ' enough]," said {p}.',
    "{h} jumped for joy and thanked {p}.",
]

HAPPY = [
    "From that day on, {h} and {p} were [good friends|best friends|the best of friends].",
    "{h} was [happy|very happy|the happiest {kind} {at}|so happy that {he} sang all the way home].",
    "{h} went home with a [big smile|happy heart|warm heart].",
    "That night {h} [slept well|slept soundly|fell asleep with a smile], and {his} dreams were sweet.",
    "And {h} [was never {feel} again|smiled for a whole week|never forgot that day].",
    "{h} and {p} [sat together|laughed together|watched the stars together] until [late|bedtime"
    "|it was dark].",
    "And they all lived happily ever after.",
]

MORALS = {
    "help": [
        "A good friend is the best help.",
        "It is brave to ask for help.",
        "Kindness is worth more than gold.",
        "Two can do what one cannot.",
    ],
    "make": [
        "If you try again, you will learn.",
        "Patience makes good work.",
        "What you make yourself is twice as dear.",
    ],
    "journey": [
        "A long road is shorter with a friend.",
        "Keep going, one step at a time.",
        "Those who ask the way will find it.",
    ],
    "contest": [
        "It is more fun to do your best than to be the best.",
        "Practice makes you strong.",
        "Being fair is better than being fast.",
    ],
    "rescue": [
        "Be brave when others need you.",
        "Kindness always comes back.",
        "Even the small can do great things.",
    ],
    "sorry": ["It is good to say sorry.", "The truth makes the heart light.", "Ask before you take."],
    "lost": [
        "Look after the things you love.",
        "Do not give up looking too soon.",
        "Friends find more than one pair of eyes.",
    ],
    "share": [
        "Sharing makes everything better.",
        "Joy grows when you share it.",
        "A shared treat tastes twice as good.",
    ],
}


@dataclass(frozen=True)
class Trouble:
    """A trouble, who can help with it, and how."""

    setup: list[str]
    why: str  # a clause for "because ..."
    helpers: list[str]
    solve: list[str]
    helped: str  # what the helper did, as a verb phrase in the past


WISH_TROUBLES = [
    Trouble(
        [
            "Near {spot} {he} found a {thing} at last, but it hung at the top of a [tall|very tall] tree.",
            "There was a {thing} {at}, but it was stuck high up in a tree.",
            "The wind had blown a {thing} to the top of a tall tree, and {h} could not reach it.",
        ],
        "the {thing} was too high up in a tree",
        w.FLYERS,
        [
            '"I can fly," said {p}. ^{p} flew up [into the tree|to the top|high into the air] and'
            " brought down {the_thing}.",
            "{p} spread {phis} wings, flew to the top of the tree and came back with {the_thing}.",
            '"That is easy for me," said {p}, and flew up to get {the_thing}.',
        ],
        "flew up into the tree and brought down the {thing}",
    ),
    Trouble(
        [
            "There was a {thing} {at}, but it was stuck in a tall tree.",
            "{h} saw a {thing} on a high branch, but {he} could not climb so high.",
            "A {thing} hung on the highest branch of the oak tree, and {h} was too short to reach it.",
        ],
        "the {thing} was on a high branch and {he} could not reach it",
        w.CLIMBERS,
        [
            "{p} [climbed|quickly climbed|slowly climbed] the tree and [threw down|brought back|"
            "handed down] {the_thing}.",
            '"I am good at climbing," said {p}. Up and up {phe} went, and down came {the_thing}.',
            '"Hold my bag," said {p}, and climbed up branch by branch to get {the_thing}.',
        ],
        "climbed the tree and got the {thing}",
    ),
    Trouble(
        [
            "There was a {thing} on the other side of the water, but {h} could not swim.",
            "{h} saw a {thing} floating in the deep water, but {he} was afraid to go in.",
            "{he} found a {thing}, but it fell into the deep water and drifted away.",
        ],
        "the {thing} was out in the deep water",
        w.SWIMMERS,
        [
            "{p} [jumped|dived|slipped] into the water and [swam back with|brought back|came back with]"
            " {the_thing}.",
            '"I love to swim," said {p}, and swam out to get {the_thing}.',
            "Splash! ^{p} swam out, took hold of {the_thing} and swam back.",
        ],
        "swam out and brought back the {thing}",
    ),
    Trouble(
        [
            "{h} found a {thing} near {spot}, but a heavy [stone|log|rock] lay on it.",
            "There was a {thing} {at}, but it was stuck under a heavy log.",
            "{he} saw a {thing} in a deep hole under a big rock, and the rock would not move.",
        ],
        "the {thing} was stuck and too heavy to pull out",
        w.STRONG,
        [
            "{p} [pushed|pulled|pushed and pulled] with all {phis} strength, and at last"
            " {the_thing} was free.",
            '"I am strong," said {p}. One, two, three! ^{the_thing} came free.',
            "{p} took a deep breath and gave one great pull, and out came {the_thing}.",
        ],
        "used all {phis} strength to pull the {thing} free",
    ),
    Trouble(
        [
            "There was a {thing} at the [market|shop], but it cost [five|ten|seven|three] coins,"
            " and {he} had [none|only one].",
            "{h} went to the shop to buy a {thing}, but it cost too much.",
            "The shopkeeper had a {thing}, but {h} had no money.",
        ],
        "{he} had no money to buy the {thing}",
        w.WISE + w.MAKERS,
        [
            '"Help me with my work, and I will pay you," said {p}. So {h} worked hard all [day|week]'
            " and [earned enough coins|bought {the_thing}].",
            '"I need someone to [sweep my floor|carry my wood|water my plants|pick my apples]," said'
            " {p}. ^{h} did the work well, and {p} paid {him} enough to buy {the_thing}.",
            "{p} gave {him} a small job, and by evening {h} had enough coins for {the_thing}.",
        ],
        "gave {him} work so that {he} could pay for the {thing}",
    ),
    Trouble(
        [
            "But nobody {at} knew where to find a {thing}.",
            "{h} looked near {spot}, but there was no {thing} there.",
            "{he} looked high and low, but {he} could not find a {thing} anywhere.",
        ],
        "{he} could not find a {thing} anywhere",
        w.FINDERS + w.WISE,
        [
            '"I know where to look," said {p}. ^{p} led {him} to {goal}, and there [lay|was] {the_thing}.',
            '"I saw a {thing} not long ago," said {p}. "Follow me." And behind {goal} they found'
            " {the_thing}.",
            '"I have a {thing} at home, and I do not need it," said {p}. "It is yours."',
        ],
        "showed {him} where to find the {thing}",
    ),
    Trouble(
        [
            "{h} got a {thing} at last, but a [storm|strong wind] came and carried it away.",
            "One day {h} found a {thing}, but the wind picked it up and blew it far away.",
            "{his} grandmother gave {him} a {thing}, but that same night a storm blew it away.",
        ],
        "a storm blew the {thing} away",
        w.FINDERS + w.FLYERS,
        [
            "{p} had seen where it fell. Together they walked to {goal} and found {the_thing}.",
            '"I saw it come down near {goal}," said {p}. They ran there, and {the_thing} was not'
            " even broken.",
            "{p} searched all [day|morning] and came back with {the_thing}.",
        ],
        "helped {him} find the {thing} after the storm",
    ),
    Trouble(
        [
            "But {spot_owner} had the only {thing}, and {spot_owner} did not want to give it away.",
            "The only {thing} {at} belonged to {spot_owner}, and {spot_owner} said no.",
            '{h} asked {spot_owner} for a {thing}. "No," said {spot_owner}. "It is mine."',
        ],
        "{spot_owner} would not give {him} the {thing}",
        w.WISE,
        [
            '"Bring {spot_owner} [some flowers|a warm meal|a kind word]," said {p}. ^{h} did, and'
            " {spot_owner} smiled and gave {him} {the_thing}.",
            '"Maybe {spot_owner} is only lonely," said {p}. So they paid a visit, and soon {spot_owner}'
            " laughed and gave {h} {the_thing}.",
            "{p} went and spoke gently with {spot_owner}. In the end, {spot_owner} gave {h} {the_thing}.",
        ],
        "told {him} how to be kind to {spot_owner}",
    ),
]

MAKE = Trouble(
    [
        "{h} decided to make a {thing} {him}self. But {his} first try [fell apart|broke in two|came"
        " out all wrong].",
        '"I will make one," {he} said. {he} worked all day, but the {thing} [broke|fell apart|came'
        " out crooked].",
        "{h} began to make a {thing}, but {he} did not know how, and everything went wrong.",
    ],
    "the {thing} {he} made went wrong",
    w.MAKERS,
    [
        '"Let me show you," said {p}. "Go slowly, and [do one thing at a time|measure twice]."'
        " Together they worked until {the_thing} was ready.",
        "{p} showed {him} how to do it, step by step. By [evening|sunset], {the_thing} was finished.",
        '"The first try is never the best," said {p}. They began again, and this time {the_thing}'
        " came out just right.",
    ],
    "showed {him} how to make the {thing}",
)

JOURNEY_SETUP = [
    "{h} heard that there was a {thing} far away, {at2}. So {he} [packed a small bag|took some bread"
    "|said goodbye] and set off.",
    '"You can find a {thing} {at2}," people said. So {h} left home to look for it.',
    "The only {thing} was {at2}, and that was a long way off. {h} set off at [dawn|sunrise].",
]
JOURNEY_STEPS = [
    "{he} walked past {spot} and [over a hill|through tall grass|across a bridge].",
    "[On the first day|First] {he} crossed [a stream|a wide field|a dark wood].",
    "{he} walked and walked until {his} feet were tired.",
    "At night {he} slept under [a tree|a bush|the stars].",
    "[The road was long|The way was steep], but {he} sang to keep {his} spirits up.",
]
JOURNEY = Trouble(
    [
        "But then the road split in two, and {he} did not know the way.",
        "But soon {he} was lost, and it was getting dark.",
        "But in the fog {he} lost {his} way.",
    ],
    "{he} lost {his} way on the journey",
    w.FINDERS + w.FLYERS,
    [
        '"I know the way," said {p}. ^{p} walked with {him} until they stood {at2}. There was {the_thing}!',
        "{p} showed {him} the right road. At last {he} stood {at2}, and there was {the_thing}.",
        '"Follow me," said {p}. Before long they were {at2}, and there they found {the_thing}.',
    ],
    "showed {him} the way",
)

CONTESTS = {
    "race": ("ran as fast as {he} could", "tripped over a [root|stone]", "run faster"),
    "singing contest": ("sang a sweet song", "forgot the words", "sing without fear"),
    "baking contest": ("baked a fine cake", "burned the first cake", "bake a better cake"),
    "jumping contest": ("jumped higher than ever", "landed in the mud", "jump higher"),
    "dancing contest": ("danced with light feet", "mixed up the steps", "dance in time"),
    "drawing contest": ("drew a lovely picture", "spilled the paint", "draw with care"),
}
CONTEST_SETUP = [
    "One day there was a {contest} {at}. The prize was a {thing}.",
    "A {contest} was held {at}, and the winner would get a {thing}.",
    '"Who wins the {contest} gets a {thing}!" called the [mayor|judge].',
]
CONTEST = Trouble(
    [
        "{h} practiced, but {he} {fail}.",
        "{h} wanted to win so much. But the day before, {he} {fail}.",
        "In the first round {he} {fail}.",
    ],
    "{he} {fail} in the {contest}",
    w.WISE + w.FRIENDS,
    [
        '"Do not worry," said {p}. ^{p} showed {him} how to {skill}. The next time {h} {deed} and won'
        " {the_thing}.",
        "{p} practiced with {him} every day and showed {him} how to {skill}. Then {h} {deed}, and {he}"
        " won {the_thing}.",
        '"Take a deep breath and try again," said {p}. ^{h} {deed}, and the judge gave {him} {the_thing}.',
    ],
    "showed {him} how to {skill}",
)

RESCUES = {
    "fell into the cold water": "[held out a long branch|threw a rope] and pulled {phim} out",
    "got stuck in a deep hole": "[let down a rope|let down a long branch] and pulled {phim} out",
    "was caught in a net": "cut through the net until {phe} was free",
    "was stuck in the deep mud": "laid down [branches|planks] and pulled {phim} out",
    "got lost in the dark": "called {phis} name until {phe} heard, and led {phim} home",
    "was stuck under a fallen tree": "pushed the tree aside with a [pole|strong stick]",
}
RESCUE_SETUP = [
    "One {time}, {h} heard a cry for help. ^{ap} {peril}!",
    "[Suddenly|Then|One {time}] there was a loud cry. ^{ap} {peril}!",
    "One {time} something bad happened near {spot}: {ap} {peril}.",
]
RESCUE_FEAR = [
    "{h} was {feel}, but {he} did not run away.",
    '{h} felt {feel}. "I must help," {he} said.',
    '"Help me!" called {p}. ^{h} was {feel}, but {he} took a deep breath.',
]
RESCUE_DO = [
    "Quickly {h} {save}.",
    "{h} thought fast. ^{he} {save}.",
    '"I am coming!" called {h}, and {he} {save}.',
]
RESCUE_REWARD = [
    '"You saved me," said {p}. "Please take this." It was a {thing}!',
    "{p} wanted to say thank you, and gave {h} a {thing}.",
    "The next day {p} came with a present for {h}. It was a {thing}!",
    '"You are so brave," said {p}, and gave {him} a {thing}.',
]

SORRY_SETUP = [
    "{ap} had a {thing}. ^{h} wanted it so much that {he} took it without asking.",
    "One {time} {h} saw a {thing} that belonged to {ap}. When nobody was looking, {he} took it home.",
    '{ap} had a fine {thing}. "I will only borrow it," thought {h}, and {he} took it without a word.',
]
SORRY_BREAK = [
    "But {the_thing} [fell down and broke|slipped and broke|got dirty and bent].",
    "But on the way home {he} dropped it, and {the_thing} [broke|was bent].",
]
SORRY_FEEL = [
    '{h} felt {feel}. "What have I done?" {he} said.',
    "{h} could not sleep. ^{he} felt {feel}.",
    "{p} looked for {the_thing} everywhere, and {h} felt {feel}.",
]
SORRY_TELL = [
    'At last {h} went to {p} and told the truth. "I am sorry," {he} said. "I took your {thing}."',
    'The next {time}, {h} knocked at the door of {p}. "I took your {thing}, and I am so sorry," {he} said.',
    '"It was me," {h} told {p}. "I took your {thing}. Please forgive me."',
]
SORRY_END = [
    '{p} was quiet for a moment. "Thank you for telling me," {phe} said. Together they mended'
    " {the_thing}, and then they shared it.",
    '"I forgive you," said {p}. They mended {the_thing} together, and {p} let {him} use it every day.',
    '{p} smiled. "We can fix it together," {phe} said. And when it was done, {p} shared'
    " {the_thing} with {him}.",
]

SORRY_BREAK_WEAR = [
    "But on the way home {the_thing} got caught on a thorn bush and was torn.",
    "But {he} slipped, and {the_thing} was torn and full of mud.",
]
REPLIES = [
    "{h} told {p} everything.",
    "{h} told {p} the whole story.",
    "{h} told {p} about it.",
    '"{my_trouble}," said {h}.',
    '"{my_trouble}," {h} answered.',
]

LOST_HAVE = [
    "{h} had a {thing} that {he} [loved very much|took everywhere|loved more than anything].",
    "{his} dearest treasure was a {thing}.",
    "{his} grandmother had given {him} a {thing}, and {he} took it everywhere.",
]
LOST_SETUP = [
    "But one {time} {the_thing} was gone.",
    "One {time} {h} lost {the_thing}.",
    "One {time}, when {he} came home, {the_thing} was not there.",
]
LOST_SEARCH = [
    "{he} looked near {spot}, but it was not there.",
    "{he} looked under [{his} bed|the leaves|a bush], but {he} found [only dust|nothing|only an old sock].",
    "{he} asked [the neighbors|everyone {he} met], but nobody had seen it.",
    "Then {he} looked near {spot}. Nothing!",
]
LOST_FOUND = [
    '"I found {the_thing} near {goal}," said {p}. "Here it is!"',
    "{p} helped {him} look, and near {goal} {phe} found {the_thing}.",
    '"Let us look together," said {p}. They went back step by step, and behind {goal} {p} saw {the_thing}.',
]

SHARE_HAVE = [
    "One {time} {h} got a {thing} for {his} birthday.",
    "{h} had a fine new {thing}.",
    "{h} was very proud of {his} new {thing}.",
]
SHARE_ASK = [
    '{ap} came by and asked, "May I have a turn with your {thing}?" But {h} said no.',
    '{ap} asked {him} to share it. "No," said {h}. "It is all mine."',
    '{ap} looked at {the_thing} and asked, "Can we share?" "No!" said {h}.',
]
SHARE_ASK_FOOD = [
    '{ap} came by and asked, "May I have a little of your {thing}?" But {h} said no.',
    '{ap} was hungry and asked {him} to share it. "No," said {h}. "It is all mine."',
    '{ap} looked at {the_thing} and asked, "Can we share?" "No!" said {h}.',
]
SHARE_LONELY = [
    "{p} went away, and {h} was alone. It was no fun at all, and {he} felt {feel}.",
    "So {h} sat all alone with {the_thing}, and {he} felt {feel}.",
    "{p} walked off slowly. Soon {h} felt {feel}.",
]
SHARE_TURN = [
    'Then {h} ran after {p}. "Please come back," {he} said. "Let us share {the_thing}."',
    '"I was not kind," thought {h}. ^{he} went to find {p} and shared {the_thing}.',
    '{h} went to {p}. "I am sorry," {he} said. "You may share {the_thing} with me."',
]
SHARE_END = [
    "They laughed and had a [lovely|happy|wonderful] {time} together.",
    "It was much nicer together.",
    "{p} was so glad, and both of them smiled.",
]

NEXT_EPISODES = [
    "The next {time}, something new happened.",
    "But that is not the end of the story.",
    "A few days later, {h} had a new wish.",
    "When [spring|summer|autumn|winter] came, there was another adventure.",
    "Some time later, {h} was out again.",
]
