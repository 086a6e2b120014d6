"""How people type: openings, closings, contractions, capitals and punctuation around a question."""

import random
import re

OPENINGS = (
    "Hello.", "Hi,", "Hey,", "Hi there,", "Good morning.", "Good evening.", "Excuse me,", "Sorry to bother you.",
    "One question:", "A small question:", "Quick question:", "Just checking:", "For a report:", "For a quiz:",
    "For school:", "My friend asks:", "My boss wants to know this.", "I forgot this one:", "Please help me:",
    "Help me out:", "So,", "OK,", "Now,", "Next:", "And another one.", "I am stuck.", "Tell me,", "Say,",
    "I was asked this:", "We argue about this:", "Please answer:", "I was wondering,", "If you can,", "Listen,",
)  # fmt: skip
CLOSINGS = (
    "Thank you.", "Thanks!", "Thanks in advance.", "Please.", "I could not find it.", "I need it today.",
    "Be brief.", "That is all.", "Just the answer.", "No long story.", "It is for a report.", "Cheers.",
    "I have no idea.", "I hope you can help.", "My notes are lost.", "Nobody here knows.",
)  # fmt: skip
SHORT = (
    ("What is", ("What's", "Whats", "what's", "whats")),
    ("what is", ("what's", "whats")),
    ("Who is", ("Who's", "who's")),
    ("Where is", ("Where's", "where's")),
    ("I would", ("I'd", "i'd")),
    ("I am", ("I'm", "im")),
    ("Please", ("please", "Pls", "pls")),
    ("Can you", ("can you", "can u")),
    ("Tell me", ("tell me", "Tell us")),
)  # fmt: skip
STARTING = (
    "What Which Who When Where How Why In On At By After Into Can Could Do Does Did Is Are Was Were Would Will Please "
    "Tell Give Name Find Look Show Write Compute Calculate Work I We My The A An For About Whose Whom"
)
STARTS = frozenset(STARTING.split())
"""First words that stay the same word without their capital."""
OPENED, CLOSED, SHORTENED, LOWERED, SHOUTED, BARE, STRETCHED = 0.2, 0.08, 0.15, 0.2, 0.06, 0.15, 0.08
"""How often each change is made."""
SLIPS = 0.06
"""Share of the questions where capitals mean nothing that have a letter out of its place."""
LOWERED_LETTERS, BARE_LETTERS = 0.4, 0.3
"""The same where capitals mean nothing: sums, greetings and the like are mostly typed in a hurry."""


def typed(rng: random.Random, question: str, *, letters: bool = False) -> str:
    """The question as somebody may type it. `letters`: its capitals mean nothing, so all of them may change."""
    text = question
    for long, short in SHORT:
        if text.startswith(long) and rng.random() < SHORTENED:
            text = rng.choice(short) + text.removeprefix(long)
    if rng.random() < (LOWERED_LETTERS if letters else LOWERED):
        text = text.lower() if letters else _lower_start(text)
    if len(text) > 1 and text[-1] in "?.!" and rng.random() < (BARE_LETTERS if letters else BARE):
        text = text[:-1]
    elif text[-1] == "?" and rng.random() < STRETCHED:
        text = text[:-1] + rng.choice((" ?", "??", "?!", "...?"))
    if rng.random() < OPENED:
        opening = rng.choice(OPENINGS)
        follows = opening[-1] in ",:"
        text = f"{opening} {_lower_start(text) if follows else text}"
    if text[-1] in "?.!" and rng.random() < CLOSED:
        text = f"{text} {rng.choice(CLOSINGS)}"
    return text.upper() if letters and rng.random() < SHOUTED else text


def misspelt(rng: random.Random, question: str, part: str = "") -> tuple[str, str]:
    """The question with two neighbours in a word changed about, or a letter lost; `part` of it alike, if it is hit."""
    words = [found for found in re.finditer(r"[a-z]{5,}", question)]
    if not words:
        return question, part
    found = rng.choice(words)
    at, word = rng.randint(1, len(found[0]) - 2), found[0]
    swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    slip = swapped if swapped != word and rng.random() < 0.6 else word[:at] + word[at + 1 :]
    inside = question.lower().find(part.lower()) if part else -1
    if inside >= 0 and inside <= found.start() and found.end() <= inside + len(part):
        start = found.start() - inside
        part = part[:start] + slip + part[start + len(word) :]
    return question[: found.start()] + slip + question[found.end() :], part


def _lower_start(text: str) -> str:
    """Without the first capital, where the first word is no name."""
    first = text.split(maxsplit=1)[0].rstrip(",:?.!'")
    return text[0].lower() + text[1:] if first in STARTS and first != "I" else text
