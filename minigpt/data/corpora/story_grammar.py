"""The grammar of the built-in stories, as one program that tells a story.

The program is a Python generator. It yields a `str` to say it, and a tuple of strings to have one
of them chosen; the chosen one is said too, and is sent back. Whoever drives it decides how the
choices are made, and so the same program writes stories (by drawing), reads them (by looking at
what the text says next) and counts them (by trying every branch): see `stories.py`.

Three rules keep the text and the choices in step, and the tests hold them:

- the options of one choice are prefix-free, so the text shows which one was taken;
- they are equally probable, so a choice among n costs log n nats;
- only a `Fork` may change how many options the choices after it have.
"""

from collections.abc import Generator
from typing import NamedTuple, TypeAlias, TypeVar

GRAMMAR_VERSION = 2
"""Part of every cache key: to be raised whenever the text or the probability of a story changes."""

T = TypeVar("T")
Options: TypeAlias = tuple[str, ...]
Telling: TypeAlias = Generator[str | Options, str, T]


class Fork(tuple[str, ...]):
    """Options that do not all lead to equally many stories."""

    __slots__ = ()


class Someone(NamedTuple):
    """A character: the name and the pronouns that go with it (she, her, her; he, his, him; ...)."""

    name: str
    they: str
    their: str
    them: str


_CAST = {
    name: Someone(name, *pronouns)
    for pronouns, names in {
        ("she", "her", "her"): ("Mia", "Lily", "Nora", "Ella", "Ruby"),
        ("he", "his", "him"): ("Tom", "Ben", "Max", "Sam", "Leo"),
        ("they", "their", "them"): ("Pip", "Kit"),
    }.items()
    for name in names
}
_NAMES = tuple(_CAST)
_TRAITS = ("small", "brave", "quiet", "kind", "young", "shy", "clever", "merry", "sleepy", "gentle")
_ANIMALS = ("fox", "bear", "rabbit", "mouse", "frog", "cat", "dog", "duck", "goat", "squirrel")
_PLACES = (
    "by the river",
    "under the bridge",
    "on the hill",
    "near the mill",
    "in the forest",
    "behind the barn",
    "by the lake",
    "in the garden",
    "near the cave",
    "under the tower",
)
_COLOURS = ("red", "blue", "green", "yellow", "white", "golden", "silver", "purple")
_THINGS = ("kite", "drum", "hat", "boat", "lamp", "ball", "scarf", "flute")
_LOOKS = ("old", "new", "tiny", "huge", "pretty", "heavy", "light", "shiny")
_FOODS = ("honey", "bread", "cheese", "cake", "jam", "soup")
_OPENINGS = (
    "Once upon a time",
    "Long ago",
    "Many years ago",
    "One spring",
    "One summer",
    "One autumn",
    "One winter",
)
_WEATHER = ("cold", "warm", "windy", "rainy", "sunny", "foggy", "snowy", "bright")
_HOURS = ("morning", "afternoon", "evening", "day", "night")
_MOVES = ("ran", "walked", "hurried", "raced", "rode", "danced")
_PASTIMES = ("sang", "danced", "swam", "played", "walked", "talked", "read", "painted")
_HOW_LONG = ("together", "for hours", "in the sun", "in the rain", "by the fire", "until dark")
_SPOTS = (
    "under a log",
    "behind a wall",
    "in the grass",
    "up a tree",
    "beside a stone",
    "in a hole",
    "under some leaves",
    "between two rocks",
)
_MANNERS = (
    "softly",
    "kindly",
    "happily",
    "slowly",
    "gladly",
    "loudly",
    "warmly",
    "proudly",
    "shyly",
    "sleepily",
)
_MISHAPS = ("tripped", "fell", "stopped", "slipped", "got lost", "grew tired")
_FEELINGS = ("happy", "proud", "glad", "calm", "lucky", "warm", "tired", "hopeful")


def tell() -> Telling[None]:
    """Tells one story, of five to twelve sentences."""
    hero, friend = yield from _introduces()
    yield ". One "
    yield _WEATHER
    yield " "
    yield _HOURS
    yield f", {hero.name} "
    plot = yield Fork(("lost", "saw", "bought", "made", "found", "and"))
    if plot == "and":
        yield f" {friend.name} raced for"
    yield " a "
    thing = yield from _thing()
    # Said again at once: a model that has learnt to repeat it here can learn to from further away.
    yield f". The {thing} was "
    yield _LOOKS
    match plot:
        case "lost":
            yield from _seeks(hero, friend, thing)
        case "saw":
            yield from _trades(hero, friend, thing)
        case "bought":
            yield from _helps(hero, friend, thing)
        case "made":
            yield from _gives(hero, friend, thing)
        case "found":
            yield from _returns(hero, friend, thing)
        case _:
            yield from _races(hero, friend, thing)
    yield ". "
    yield ("That night", "That evening", "The next day", "Many years later")
    yield ", "
    yield (hero.name, friend.name)
    yield " "
    yield ("dreamed of", "sang about", "talked about", "thought of", "laughed about", "drew")
    yield f" the {thing} and felt "
    yield _FEELINGS
    yield "."


def _introduces() -> Telling[tuple[Someone, Someone]]:
    """Introduces the two whom every story is about, up to the full stop."""
    yield _OPENINGS
    yield ", a "
    yield from _kind()
    yield " named "
    hero = yield from _someone()
    yield " lived "
    yield _PLACES
    yield f". {hero.their.capitalize()} "
    yield ("best", "oldest", "dearest", "only")
    yield " friend was "
    friend = yield from _newcomer(hero)
    yield ". Every "
    yield _HOURS
    yield " they "
    yield _PASTIMES
    yield " "
    yield _HOW_LONG
    return hero, friend


def _kind() -> Telling[None]:
    """Tells of a "small fox"."""
    yield _TRAITS
    yield " "
    yield _ANIMALS


def _someone(*others: Someone) -> Telling[Someone]:
    """Names someone: none of the others."""
    taken = [other.name for other in others]
    return _CAST[(yield tuple(name for name in _NAMES if name not in taken))]


def _newcomer(*others: Someone) -> Telling[Someone]:
    """Introduces "Tom, a shy bear": none of the others."""
    someone = yield from _someone(*others)
    yield ", a "
    yield from _kind()
    return someone


def _thing() -> Telling[str]:
    """Tells of a "red kite"."""
    colour = yield _COLOURS
    yield " "
    noun = yield _THINGS
    return f"{colour} {noun}"


def _in_some_manner(who: Someone) -> Telling[None]:
    """Tells who spoke, and how: "Tom softly"."""
    yield f" {who.name} "
    yield _MANNERS


def _seeks(hero: Someone, friend: Someone, thing: str) -> Telling[None]:
    yield f'. "Where is the {thing}, {friend.name}?" asked'
    yield from _in_some_manner(hero)
    yield '. "'
    if (yield Fork(("It", "Ask"))) == "It":
        yield " is "
        yield _PLACES
        yield '," said'
        yield from _in_some_manner(friend)
        yield f". So {hero.they} "
        yield _MOVES
        yield f" there and found the {thing} "
        yield _SPOTS
    else:
        yield " "
        third = yield from _someone(hero, friend)
        yield '," said'
        yield from _in_some_manner(friend)
        yield f". {third.name}, a "
        yield from _kind()
        yield f", had found the {thing} "
        yield _PLACES


def _trades(hero: Someone, friend: Someone, thing: str) -> Telling[None]:
    yield f", and {friend.name} wanted some "
    yield _FOODS
    yield f" for it. {hero.name} "
    yield ("found", "made", "borrowed", "bought")
    yield " some "
    yield _PLACES
    yield f'. "Will you trade, {friend.name}?" asked'
    yield from _in_some_manner(hero)
    yield '. "'
    if (yield Fork(("Yes", "No"))) == "Yes":
        yield f', {hero.name}," said'
        yield from _in_some_manner(friend)
        yield f". So {hero.name} got the {thing}"
    else:
        yield f', I love the {thing}," said'
        yield from _in_some_manner(friend)
        yield f". So {hero.name} "
        yield ("ate", "kept", "shared", "sold")
        yield " it all"


def _helps(hero: Someone, friend: Someone, thing: str) -> Telling[None]:
    yield f". Then {hero.they} heard a cry "
    yield _PLACES
    yield f". It was {friend.name}, stuck "
    yield _SPOTS
    yield f'. "Help me, {hero.name}!" cried'
    yield from _in_some_manner(friend)
    yield f". {hero.name} "
    rescuer = hero
    if (yield Fork(("dropped", "called"))) == "called":
        yield " "
        rescuer = yield from _newcomer(hero, friend)
        yield f", who pulled {friend.them} out"
    else:
        yield f" the {thing} and pulled {friend.them} out"
    yield f'. "Thank you, {rescuer.name}," said'
    yield from _in_some_manner(friend)


def _gives(hero: Someone, friend: Someone, thing: str) -> Telling[None]:
    yield ", and it took "
    yield ("two", "three", "four", "five", "six", "seven")
    yield " "
    yield ("hours", "days", "nights", "weeks")
    yield f". {hero.they.capitalize()} hid the {thing} "
    yield _PLACES
    yield f'. "Come with me, {friend.name}," said'
    yield from _in_some_manner(hero)
    yield ". They "
    yield _MOVES
    yield " there. "
    if (yield Fork(('"The', "But"))) == "But":
        yield " "
        yield from _newcomer(hero, friend)
        yield ", had "
        yield ("lost", "sold", "broken", "hidden", "taken")
        yield f" the {thing}"
    else:
        yield f' {thing} is for you, {friend.name}," said'
        yield from _in_some_manner(hero)


def _returns(hero: Someone, friend: Someone, thing: str) -> Telling[None]:
    yield f'. "Is the {thing} yours, {friend.name}?" asked'
    yield from _in_some_manner(hero)
    yield '. "'
    if (yield Fork(("Yes", "No"))) == "Yes":
        yield ", I lost it last "
        yield ("night", "week", "month", "year", "spring", "summer", "autumn", "winter")
        yield '," said'
        yield from _in_some_manner(friend)
        yield f". {friend.they.capitalize()} "
        yield _MOVES
        yield f" home with the {thing}"
    else:
        yield ", ask "
        third = yield from _someone(hero, friend)
        yield '," said'
        yield from _in_some_manner(friend)
        yield f". They found {third.name} "
        yield _PLACES
        yield f" and gave {third.them} the {thing}"


def _races(hero: Someone, friend: Someone, thing: str) -> Telling[None]:
    yield '. "Go!" cried '
    yield from _newcomer(hero, friend)
    yield ". "
    loser = _CAST[(yield (hero.name, friend.name))]
    winner = friend if loser == hero else hero
    yield " "
    yield _MISHAPS
    yield f', so {winner.name} won. "The {thing} is yours, {winner.name}," said'
    yield from _in_some_manner(loser)
