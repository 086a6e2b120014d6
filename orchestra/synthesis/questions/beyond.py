"""What no tool here can know, and what is no question at all: answered at once, by saying so."""

import itertools
import random
import re
from collections.abc import Iterator

from orchestra.synthesis.questions.surface import typed

CANNOT_KNOW = "I cannot know that."
WHAT_I_AM = "I am a small demonstration model of a made-up world."
ASK_ME = "Please ask me a question."

SLOTS: dict[str, tuple[str, ...]] = {
    "country": (
        "France", "Germany", "Italy", "Spain", "Poland", "Norway", "Sweden", "Greece", "Turkey", "Egypt", "Kenya",
        "India", "China", "Japan", "Brazil", "Chile", "Mexico", "Canada", "Portugal", "Austria", "Ireland", "Finland",
        "Iran", "Peru", "Cuba", "Russia", "Ukraine", "Denmark", "the Netherlands", "the United States", "England",
    ),
    "city": (
        "London", "Paris", "Berlin", "Rome", "Madrid", "Tokyo", "Moscow", "Boston", "Chicago", "Vienna", "Prague",
        "Dublin", "Oslo", "Cairo", "Delhi", "Lima", "Sydney", "New York", "Toronto", "Munich", "Lisbon", "Athens",
    ),
    "day": ("today", "tomorrow", "tonight", "now", "right now", "this week", "next week", "on Sunday", "yesterday"),
    "stock": ("gold", "oil", "bitcoin", "the euro", "the dollar", "Apple shares", "Tesla shares", "bread", "petrol"),
    "sport": ("the football match", "the tennis final", "the cup", "the election", "the race", "the world cup"),
    "person": (
        "Einstein", "Shakespeare", "Napoleon", "Mozart", "Darwin", "Newton", "Lincoln", "Picasso", "Beethoven",
        "Cleopatra", "Gandhi", "Churchill", "Caesar", "the pope", "the king", "the president", "the prime minister",
    ),
    "theme": ("spring", "the sea", "my cat", "love", "autumn", "a dog", "rain", "my mother", "the moon", "friendship"),
    "sort": ("poem", "song", "story", "letter", "speech", "joke", "haiku", "e-mail", "recipe", "tweet"),
    "word": ("dog", "bread", "thank you", "good night", "house", "water", "friend", "book", "summer", "cheese"),
    "tongue": ("French", "German", "Spanish", "Italian", "Latin", "Japanese", "Polish", "Russian", "Chinese"),
    "dish": ("rice", "pasta", "an egg", "soup", "pancakes", "a cake", "potatoes", "fish", "lentils", "bread"),
    "code": ("Python", "Java", "SQL", "a spreadsheet", "JavaScript", "C", "a shell script"),
    "animal": ("whale", "horse", "cat", "elephant", "shark", "snake", "bear", "bee", "giraffe", "frog"),
    "body": ("head", "back", "knee", "stomach", "throat", "tooth", "foot", "ear"),
    "work": ("Hamlet", "the Bible", "the Odyssey", "Harry Potter", "Star Wars", "Titanic", "Faust", "Don Quixote"),
}  # fmt: skip
UNKNOWN = (
    "What is the capital of {country}?", "Who is the president of {country}?", "How many people live in {country}?",
    "How many people live in {city}?", "What language do they speak in {country}?", "How big is {country}?",
    "Is {city} larger than {country}?", "How far is it from {city} to {country}?", "Where is {city}?",
    "How do I get from {city} to the airport?", "What is the weather in {city} {day}?", "Will it rain {day}?",
    "Will it snow in {city} {day}?", "How warm is it in {city}?", "What is the temperature outside {day}?",
    "What time is it in {city}?", "What time is it?", "What day is it {day}?", "What is the date {day}?",
    "What is in the news {day}?", "What happened in {country} {day}?", "What is the price of {stock} {day}?",
    "How much is {stock} {day}?", "Should I buy {stock}?", "Will {stock} rise {day}?", "Who won {sport} {day}?",
    "Who will win {sport}?", "What was the score of {sport}?", "When is {sport}?", "Who was {person}?",
    "When was {person} born?", "When did {person} die?", "Where does {person} live?", "How old is {person}?",
    "What did {person} say about {theme}?", "Who wrote {work}?", "What happens in {work}?", "Who plays in {work}?",
    "Write me a {sort} about {theme}.", "Write a {sort} for {theme}.", "Make up a {sort} about {theme}.",
    "Tell me a {sort} about {theme}.", "Tell me a {sort}.", "Sing a {sort}.", "Give me a {sort} about {theme}.",
    "Translate {word} into {tongue}.", "How do you say {word} in {tongue}?", "What does {word} mean in {tongue}?",
    "How do I cook {dish}?", "How long does {dish} need?", "What can I make with {dish}?", "Is {dish} healthy?",
    "Write a program in {code}.", "How do I sort a list in {code}?", "Why does my code in {code} fail?",
    "How do I open a file in {code}?", "How heavy is a {animal}?", "How long does a {animal} live?",
    "What does a {animal} eat?", "Why does my {body} hurt?", "What helps when my {body} hurts?",
    "What is my name?", "Where am I?", "What did I do {day}?", "What is my password?", "Where are my keys?",
    "What is in my pocket?", "How old am I?", "What should I wear {day}?", "What should I eat {day}?",
    "Should I move to {city}?", "Should I learn {tongue}?", "Where should I go on holiday {day}?",
    "What is the meaning of life?", "Is there a god?", "Why is the sky blue?", "What is love?",
    "Book me a table in {city} {day}.", "Book a flight to {city}.", "Order me {dish}.", "Call {person}.",
    "Play some music.", "Open my e-mail.", "Turn the light off.", "Remind me {day}.", "Set an alarm for {day}.",
    "What will happen {day}?", "Which number will win the lottery {day}?", "Summarise {work}.",
    "Explain {stock} to me.", "Recommend a film like {work}.", "What is the best hotel in {city}?",
    "My child has a fever, what do I do?", "My {body} hurts.", "I feel ill {day}.", "Is it safe to eat {dish}?",
    "Put this into {tongue}: I like {dish}.", "How do you say good morning in {tongue}?", "Spell {word} in {tongue}.",
    "How many dollars is a euro {day}?", "What is a pound in euros?", "Convert dollars to euros.",
    "Which phone should I buy?", "How do I lose weight?", "Why is {stock} so expensive?", "Is {country} in Europe?",
)  # fmt: skip
ABOUT_ME = (
    "Who are you?", "What are you?", "What is your name?", "Are you a robot?", "Are you human?", "Are you a person?",
    "What can you do?", "What do you know?", "What are you for?", "Who made you?", "Who built you?", "How do you work?",
    "How old are you?", "Where do you live?", "Can you help me?", "What can I ask you?", "What should I ask you?",
    "Which model are you?", "Which language model is this?", "Are you alive?", "Do you sleep?", "What is this?",
    "What is this for?", "Are you smart?", "Can you think?", "Do you have feelings?", "How large are you?",
    "Tell me about yourself.", "Introduce yourself.", "What tools do you have?", "Do you speak {tongue}?", "Help.",
    "Help!", "How can I use you?", "Who am I talking to?", "Is this a real person?", "Are you like {person}?",
    "How does this work?", "How does it work?", "How do I use this?", "What are the experts?", "What is an expert?",
    "What does it cost?", "Does it cost me anything?", "What does a question cost?", "Is this free?",
    "Give me examples of what I can ask.", "What are good questions for you?", "Show me what you can do.",
    "I have never used this before.", "I am new here.", "What happens with my questions?", "Which tools are there?",
    "To whom do I speak?", "With whom am I speaking?", "Who is there?", "What kind of program are you?",
)  # fmt: skip
GREETINGS = (
    "Hello.", "Hi.", "Hi!", "Hey.", "Hello there.", "Good morning.", "Good evening.", "Good night.", "Hello!", "Yo.",
    "Good day.", "Good afternoon.", "Hi there!", "Hey there.", "Hiya.", "Greetings.", "Test.", "Testing.", "Start.",
    "This is a test.", "Just a test.", "I am only testing.", "Are you there?", "Is anybody there?", "How are you?",
    "How is it going?", "What is up?", "Hey bot.", "Hello bot!", "Hello computer.", "Anyone here?",
)  # fmt: skip
CHATTER = (
    "Thanks.", "Thank you.", "Thank you very much.", "Great.", "Well done.", "Nice.", "OK.", "Fine.", "Yes.", "No.",
    "Maybe.", "Sorry.", "Bye.", "Goodbye.", "See you.", "You are wrong.", "That is wrong.",
    "You are stupid.", "You are useless.", "I hate you.", "I love you.", "Shut up.", "This is bad.", "Go away.",
    "What?", "Why?", "Hm.", "Hmm.", "Oh.", "Ha ha.", "LOL.", "?", "...", "!", "Forget it.", "Never mind.",
    "I am bored.", "I am sad.", "I am tired.", "Let us talk.", "Talk to me.", "Say something.", "I like {theme}.",
    "I live in {city}.", "It is cold {day}.", "I like {dish}.", "I am from {country}.",
)  # fmt: skip
KEYS = "qwertyuiopasdfghjklzxcvbnm"
SHARES = ((UNKNOWN, CANNOT_KNOW, 0.55), (ABOUT_ME + GREETINGS, WHAT_I_AM, 0.25), (CHATTER, ASK_ME, 0.14))
"""Sentences, their answer, and their share; the rest is keys hit at random."""
SLOT = re.compile(r"\{(\w+)\}")


def beyond(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Endless requests with the fitting answer."""
    while True:
        left = rng.random()
        for sentences, answer, share in SHARES:
            left -= share
            if left < 0:
                yield typed(rng, _filled(rng, rng.choice(sentences)), letters=True), answer
                break
        else:
            yield _mashed(rng), ASK_ME


def words() -> Iterator[str]:
    """Every sentence and every word that a sentence may hold."""
    yield from itertools.chain(UNKNOWN, ABOUT_ME, GREETINGS, CHATTER, *SLOTS.values())


def _filled(rng: random.Random, sentence: str) -> str:
    return SLOT.sub(lambda match: rng.choice(SLOTS[match[1]]), sentence)


def _mashed(rng: random.Random) -> str:
    """Keys hit at random, such as "fjdk sl"."""
    return " ".join("".join(rng.choices(KEYS, k=rng.randint(2, 9))) for _ in range(rng.randint(1, 3)))
