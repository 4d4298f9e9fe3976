"""Word tables of the story world: heroes, things, places, helpers, names."""

from __future__ import annotations


def listed(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


SPECIALS = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|pad|>"]

ANIMALS = listed("""fox bear rabbit mouse squirrel hedgehog badger otter beaver duck goose hen
owl crow robin sparrow cat dog puppy kitten pony horse donkey goat sheep lamb pig cow
frog toad turtle snail bee ant beetle cricket mole deer wolf lion tiger elephant giraffe
monkey panda koala kangaroo penguin seal whale dolphin crab parrot swan hamster lizard
raccoon camel zebra peacock moose butterfly""")

PEOPLE = listed("""girl boy princess prince baker farmer sailor fisherman painter gardener
shepherd miller tailor knight king queen wizard witch clown cook""")
FEMALE = {"girl", "princess", "queen", "witch", "hen", "cow"}
MALE = {"boy", "prince", "king", "fisherman", "wizard", "knight"}

# Heroes that are rare in the corpus; they teach the model to copy from a request.
RARE_HEROES = listed("""dinosaur dragon robot unicorn ghost giant fairy elf dwarf mermaid pirate
snowman scarecrow astronaut dancer teacher doctor pilot postman carpenter spider worm
octopus shark eagle pigeon yak ostrich flamingo walrus gorilla rhino hippo otterhound
leopard cheetah jackal ferret gecko newt salmon trout starfish jellyfish firefly moth
caterpillar ladybug puffin pelican stork heron falcon raven lynx bison buffalo antelope
weasel skunk chipmunk marmot crocodile snake cobra llama mule calf piglet foal cub
chicken rooster turkey magpie nightingale cuckoo woodpecker tadpole grasshopper""")

# Things by class. The class picks reasons and uses that make sense.
THINGS: dict[str, list[str]] = {
    "toy": [
        *listed("""ball kite drum doll puzzle top train wagon sled swing balloon boat scooter
teddy hoop rope"""),
        "toy car",
        "rocking horse",
        "paper plane",
        "bicycle",
        "marble",
    ],
    "food": [
        *listed("""cake pie apple pear cookie pumpkin melon muffin pancake sandwich carrot
cherry"""),
        "loaf of bread",
        "pot of honey",
        "bowl of soup",
        "jar of jam",
        "plum",
        "peach",
    ],
    "wear": [
        *listed("""hat scarf coat crown cape ring necklace bracelet sweater cap ribbon belt
feather"""),
        "blue dress",
        "warm blanket",
        "pair of boots",
        "pair of mittens",
    ],
    "tool": [
        *listed("""lantern ladder basket bucket hammer map compass umbrella key clock bell
candle shovel net wheel broom mirror pillow teapot chair tent"""),
        "fishing rod",
    ],
    "music": listed("flute trumpet violin guitar harp whistle horn fiddle banjo piano"),
    "art": listed("book painting box letter picture notebook brush pencil puppet mask"),
    "treasure": [
        *listed("""shell pearl coin gem star crystal feather pebble flower rose seed button
stone acorn leaf diamond"""),
        "golden egg",
    ],
}
RARE_THINGS = listed("""skateboard telescope rocket computer camera radio castle house garden ship tractor
airplane submarine helicopter tambourine cello saxophone accordion helmet jacket glove
shoe sock shirt skirt vest turban cloak wand sword shield potion magnet magnifier
microscope globe flag banner statue vase pot kettle spoon fork plate cup mug bottle
barrel sack suitcase backpack wallet purse watch lamp torch rug carpet sofa bed desk
table stool bench hammock fence gate door window bridge tower windmill fountain yoyo
dice card domino robot trampoline slide canoe raft kayak anchor sail oar paddle
wheelbarrow rake saw drill nail screw needle thread thimble quilt""")
RARE_FOOD = listed("""lemon banana orange grape mango coconut walnut almond tomato potato turnip cabbage onion
mushroom waffle doughnut biscuit pizza burger noodle dumpling lollipop chocolate""")

THING_LOOKS = listed("""red blue green yellow golden silver shiny tiny big wooden purple pink
white orange bright round soft""")

# name: (preposition phrase, things seen there)
PLACES: dict[str, tuple[str, list[str]]] = {
    "forest": ("in the forest", ["the tall trees", "the mossy stones", "the fallen leaves"]),
    "village": ("in the village", ["the old well", "the little houses", "the baker's door"]),
    "meadow": ("in the meadow", ["the long grass", "the daisies", "the low hedge"]),
    "beach": ("on the beach", ["the warm sand", "the wet rocks", "the white waves"]),
    "mountain": ("on the mountain", ["the steep path", "the grey rocks", "the cold snow"]),
    "farm": ("on the farm", ["the red barn", "the hay", "the wooden fence"]),
    "garden": ("in the garden", ["the rose bushes", "the cabbage rows", "the garden wall"]),
    "castle": ("in the castle", ["the long stairs", "the great hall", "the stone towers"]),
    "town": ("in the town", ["the busy streets", "the market stalls", "the tall clock"]),
    "valley": ("in the valley", ["the small stream", "the soft hills", "the stone bridge"]),
    "jungle": ("in the jungle", ["the hanging vines", "the wide leaves", "the muddy path"]),
    "island": ("on the island", ["the palm trees", "the blue water", "the round bay"]),
    "desert": ("in the desert", ["the yellow dunes", "the dry bushes", "the hot stones"]),
    "harbor": ("at the harbor", ["the old ships", "the piled nets", "the long pier"]),
    "school": ("at the school", ["the little desks", "the playground", "the coat hooks"]),
    "park": ("in the park", ["the green benches", "the duck pond", "the big oak"]),
    "lake": ("by the lake", ["the reeds", "the flat stones", "the still water"]),
    "river": ("by the river", ["the willow trees", "the muddy bank", "the round stones"]),
    "pond": ("by the pond", ["the water lilies", "the reeds", "the wet logs"]),
    "sea": ("by the sea", ["the white waves", "the tide pools", "the wooden boats"]),
    "hill": ("on the hill", ["the windy top", "the thorn bushes", "the sheep path"]),
    "swamp": ("in the swamp", ["the dark water", "the twisted roots", "the tall reeds"]),
    "orchard": ("in the orchard", ["the apple trees", "the tall ladders", "the green grass"]),
    "market": ("at the market", ["the fruit stalls", "the flower carts", "the wooden tables"]),
    "mill": ("at the old mill", ["the turning wheel", "the flour sacks", "the narrow stairs"]),
    "cave": ("in the cave", ["the dark corners", "the wet walls", "the smooth stones"]),
    "field": ("in the wide field", ["the golden wheat", "the scarecrow", "the deep ditch"]),
    "zoo": ("at the zoo", ["the monkey house", "the seal pool", "the ticket gate"]),
    "kingdom": ("in a faraway kingdom", ["the royal road", "the palace gate", "the rose maze"]),
    "city": ("in the city", ["the tall houses", "the tram stop", "the crowded square"]),
}

SHE_NAMES = listed("""Mia Lily Anna Rosa Clara Nora Ella Ivy Lucy Molly Daisy Poppy Ruby Hazel
Willow Emma Luna Tilly Penny Maya Zoe Sara Nina Greta Lena Olive Pearl Stella Fern Dora
Amy Bella Coco Freya Heidi June Kiki Lola Mimi Nell Peggy Rita Suki Tara Una Vera Wanda""")
HE_NAMES = listed("""Tom Ben Max Leo Sam Finn Oscar Jack Hugo Toby Milo Felix Otto Theo Noah Pip
Bruno Rufus Jasper Basil Barney Charlie Henry Oliver Louis Ned Gus Teddy Rory Sandy Monty
Arlo Boris Casper Dexter Emil Fritz George Harvey Igor Jonas Karl Lars Moe Nico Paco Ralph""")

HERO_LOOKS = listed("little young small brave curious cheerful clever gentle quiet kind shy lively")
HELPER_LOOKS = listed("old wise kind friendly gentle clever patient strong big quiet cheerful")

# Helpers by what they can do.
FLYERS = listed("owl crow robin sparrow parrot swan goose butterfly bee duck")
CLIMBERS = listed("squirrel monkey cat raccoon koala giraffe panda bear")
SWIMMERS = listed("otter beaver duck seal dolphin turtle frog swan whale penguin")
STRONG = listed("bear horse elephant moose lion camel donkey farmer cow")
WISE = listed("""owl turtle elephant toad goat crow badger wizard shepherd miller gardener farmer
sailor witch queen baker""")
MAKERS = listed("beaver tailor baker painter miller mole badger spider mouse sailor farmer bee cook")
FINDERS = listed("""crow mouse squirrel dog mole owl robin hedgehog cat magpie rabbit ant shepherd
gardener fisherman raccoon""")
FRIENDS = listed("""rabbit mouse duck hedgehog squirrel frog puppy kitten lamb goat pig mole otter
robin pony girl boy hen beaver""")

WEATHER = ["sunny", "windy", "rainy", "cloudy", "snowy", "foggy", "warm", "cold", "bright"]
TIMES = ["morning", "afternoon", "evening", "day"]

SYLLABLES = listed("""bo bli dra fen gor hul jee ka lor mip nar oz pel quo rin sna tum ul vex wob
yim zor flu gri plo sti tre wum""")
