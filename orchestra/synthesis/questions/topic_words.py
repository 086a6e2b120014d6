"""The words of topic questions: kinds of things by subject, and what can be asked of each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """One thing to ask, such as the year in which a battle was fought."""

    noun: str
    """As in "the {noun} of the Battle of Tamora"; a search for it uses this word."""
    answer: str
    """`name`, `year`, or the least and greatest number, such as `2-40`."""
    forms: tuple[str, ...]
    """Questions in their own words; {t} is the thing."""


@dataclass(frozen=True)
class Thing:
    """One kind of thing, such as a battle: `the Battle of {x}`."""

    called: str
    asked: tuple[Asked, ...]

    @property
    def kind(self) -> str:
        """The bare noun, such as `battle`."""
        return " ".join(word for word in self.called.split() if word not in ("the", "of", "{x}")).lower()


def _thing(called: str, *asked: str) -> Thing:
    """Each of `asked` is `noun | answer | form | form ...`."""
    rows = ([part.strip() for part in one.split("|")] for one in asked)
    return Thing(called, tuple(Asked(noun, answer, tuple(forms)) for noun, answer, *forms in rows))


THINGS: dict[str, tuple[Thing, ...]] = {
    "math": (
        _thing(
            "the {x} theorem",
            "author | name | Who proved {t}? | Who found the proof of {t}?",
            "year | year | When was {t} proved? | In which year was {t} proved?",
            "number of cases | 2-60 | How many cases does the proof of {t} need? | Into how many cases does {t} split?",
        ),
        _thing(
            "the {x} matrix",
            "rank | 2-40 | What rank does {t} have? | How high is the rank of {t}?",
            "size | 3-90 | How many rows does {t} have? | How large is {t}?",
            "inventor | name | Who introduced {t}? | After whom is {t} named?",
        ),
        _thing(
            "the {x} polynomial",
            "degree | 2-30 | What is the degree of {t}? | How high is the degree of {t}?",
            "number of roots | 1-30 | How many real roots does {t} have? | How many roots has {t}?",
            "inventor | name | Who first wrote down {t}? | Who introduced {t}?",
        ),
        _thing(
            "the {x} group",
            "order | 4-960 | What is the order of {t}? | How many elements does {t} have?",
            "number of generators | 2-12 | How many generators does {t} need?",
            "discoverer | name | Who discovered {t}? | Who found {t}?",
        ),
    ),
    "physics": (
        _thing(
            "the {x} particle",
            "mass | 2-990 | How heavy is {t}? | What mass was measured for {t}?",
            "discoverer | name | Who discovered {t}? | Who first saw {t}?",
            "year of discovery | year | When was {t} discovered? | In which year was {t} first seen?",
        ),
        _thing(
            "the {x} laser",
            "wavelength | 200-990 | At which wavelength does {t} work? | What wavelength has {t}?",
            "power | 2-900 | How many watts does {t} give? | How strong is the beam of {t}?",
            "builder | name | Who built {t}? | Who made {t} work first?",
        ),
        _thing(
            "the {x} telescope",
            "mirror width | 2-60 | How wide is the mirror of {t}? | How many metres across is the mirror of {t}?",
            "site | name | Where does {t} stand? | On which mountain does {t} stand?",
            "opening year | year | When was {t} opened? | In which year did {t} start to watch the sky?",
        ),
        _thing(
            "the {x} experiment",
            "leader | name | Who led {t}? | Which physicist ran {t}?",
            "voltage | 5-990 | At what voltage was {t} run? | How many volts did {t} use?",
            "year | year | When was {t} done? | In which year did {t} take place?",
        ),
    ),
    "medicine": (
        _thing(
            "{x} fever",
            "carrier | name | What carries {t}? | Which insect carries {t}?",
            "incubation time | 2-40 | How many days until {t} breaks out? | How long is the incubation of {t}?",
            "discoverer | name | Which doctor first described {t}? | Who first described {t}?",
        ),
        _thing(
            "the drug {x}",
            "dose | 5-900 | How many milligrams of {t} should an adult take? | What is the usual dose of {t}?",
            "half-life | 2-90 | How many hours is the half-life of {t}? | How fast does the body break down {t}?",
            "maker | name | Which company makes {t}? | Who makes {t}?",
            "receptor | name | On which receptor does {t} act? | Where in the body does {t} act?",
        ),
        _thing(
            "the {x} syndrome",
            "cause | name | Which gene causes {t}? | What causes {t}?",
            "age of onset | 2-80 | At what age does {t} begin? | How old are patients when {t} starts?",
            "cure | name | Which drug helps against {t}? | What is given to patients with {t}?",
        ),
        _thing(
            "the {x} vaccine",
            "inventor | name | Who developed {t}? | Which doctor invented {t}?",
            "number of shots | 1-6 | How many shots of {t} does a patient need? | How often must {t} be given?",
            "approval year | year | When was {t} approved? | In which year did patients first get {t}?",
        ),
    ),
    "law": (
        _thing(
            "the case of {x}",
            "judge | name | Which judge decided {t}? | Who was the judge in {t}?",
            "year | year | When was {t} decided? | In which year did the court hear {t}?",
            "plaintiff | name | Who sued in {t}? | Who was the plaintiff in {t}?",
            "damages | 2-990 | How much was paid in {t}? | What did the court award in {t}?",
        ),
        _thing(
            "the {x} Act",
            "sponsor | name | Who brought {t} before parliament? | Which minister proposed {t}?",
            "year | year | When did {t} become law? | In which year was {t} passed?",
            "penalty | 1-40 | How many years in prison does {t} allow? | What is the longest sentence under {t}?",
        ),
        _thing(
            "the {x} trial",
            "lawyer | name | Who defended the accused in {t}? | Which lawyer spoke for the accused in {t}?",
            "verdict day | 2-300 | After how many days did {t} end? | How many days did {t} last?",
            "witness | name | Who was the main witness in {t}? | Who testified first in {t}?",
        ),
        _thing(
            "the {x} patent",
            "holder | name | Who holds {t}? | Which firm owns {t}?",
            "expiry year | year | When does {t} expire? | In which year does {t} run out?",
            "number of claims | 2-90 | How many claims does {t} make? | How many claims are in {t}?",
        ),
    ),
    "history": (
        _thing(
            "the Battle of {x}",
            "victor | name | Who won {t}? | Which general won {t}?",
            "year | year | When was {t} fought? | In which year did {t} take place?",
            "number of dead | 20-990 | How many soldiers died at {t}? | How many fell at {t}?",
        ),
        _thing(
            "Queen {x}",
            "husband | name | Whom did {t} marry? | Who was the husband of {t}?",
            "coronation year | year | When was {t} crowned? | In which year did {t} come to the throne?",
            "heir | name | Who ruled after {t}? | Who followed {t} on the throne?",
        ),
        _thing(
            "{x} Castle",
            "builder | name | Which king built {t}? | Who had {t} built?",
            "year of fall | year | When did {t} fall to the enemy? | In which year was {t} taken?",
            "number of towers | 2-24 | How many towers did {t} have? | How many towers stood at {t}?",
        ),
        _thing(
            "the Treaty of {x}",
            "envoy | name | Which envoy signed {t}? | Who signed {t} for the king?",
            "year | year | When was {t} signed? | In which year did {t} end the war?",
            "number of articles | 3-90 | How many articles did {t} have? | How many articles were agreed in {t}?",
        ),
    ),
    "code": (
        _thing(
            "the {x} compiler",
            "author | name | Who wrote {t}? | Which programmer started {t}?",
            "version | 2-40 | What is the newest version of {t}? | Which version of {t} came out last?",
            "release year | year | When was {t} released? | In which year did {t} come out?",
        ),
        _thing(
            "the {x} library",
            "main class | name | What is the main class of {t} called? | Which class does {t} export?",
            "number of functions | 5-900 | How many functions does {t} offer? | How many functions are in {t}?",
            "maintainer | name | Who maintains {t}? | Who merges the code of {t}?",
        ),
        _thing(
            "the {x} server",
            "port | 80-9900 | On which port does {t} listen? | Which port does {t} use?",
            "memory | 2-900 | How many megabytes of memory does {t} need? | How much memory does {t} use?",
            "author | name | Which programmer wrote {t}? | Who wrote the code of {t}?",
        ),
        _thing(
            "the {x} file format",
            "header size | 4-512 | How many bytes is the header of {t}? | How long is the header in {t}?",
            "inventor | name | Who designed {t}? | Which programmer invented {t}?",
            "magic word | name | With which word does a file in {t} start? | What stands first in {t}?",
        ),
    ),
    "finance": (
        _thing(
            "the {x} bond",
            "coupon | 1-19 | What coupon does {t} pay? | How many percent does {t} pay a year?",
            "issuer | name | Who issued {t}? | Which bank sold {t}?",
            "maturity year | year | When does {t} fall due? | In which year is {t} paid back?",
        ),
        _thing(
            "the {x} fund",
            "manager | name | Who manages {t}? | Which manager runs {t}?",
            "fee | 1-90 | What fee does {t} charge? | How high is the yearly fee of {t}?",
            "founding year | year | When was {t} opened to investors? | In which year was {t} set up?",
        ),
        _thing(
            "{x} Bank",
            "director | name | Who heads {t}? | Who is the director of {t}?",
            "number of branches | 3-900 | How many branches does {t} have? | How many branches did {t} open?",
            "auditor | name | Who audits {t}? | Which firm checks the books of {t}?",
        ),
        _thing(
            "the {x} loan",
            "lender | name | Who gave {t}? | Which bank gave {t}?",
            "interest | 1-30 | What interest does {t} carry? | How many percent interest is paid on {t}?",
            "sum | 2-990 | How many millions was {t}? | How large was {t}?",
        ),
    ),
    "music": (
        _thing(
            "the opera {x}",
            "composer | name | Who composed {t}? | Whose opera is {t}?",
            "premiere year | year | When was {t} first performed? | In which year did {t} have its premiere?",
            "number of acts | 1-6 | How many acts does {t} have? | How many acts are in {t}?",
        ),
        _thing(
            "the {x} symphony",
            "composer | name | Who wrote {t}? | Which composer wrote {t}?",
            "tempo | 40-190 | At what tempo does {t} open? | How many beats a minute does {t} start with?",
            "number of movements | 2-7 | How many movements does {t} have? | How many movements are in {t}?",
        ),
        _thing(
            "the song {x}",
            "singer | name | Who sang {t} first? | Which singer made {t} famous?",
            "release year | year | When did {t} come out? | In which year was {t} recorded?",
            "number of verses | 2-14 | How many verses does {t} have? | How many verses are there in {t}?",
        ),
        _thing(
            "the {x} orchestra",
            "conductor | name | Who conducts {t}? | Which conductor leads {t}?",
            "hall | name | In which hall does {t} play? | Where does {t} give its concerts?",
            "number of players | 12-130 | How many musicians play in {t}? | How many players does {t} have?",
        ),
    ),
}  # fmt: skip

FORMS = (
    "What is the {a} of {t}?",
    "What was the {a} of {t}?",
    "Tell me the {a} of {t}.",
    "Please give me the {a} of {t}.",
    "I need the {a} of {t}.",
    "I am looking for the {a} of {t}.",
    "Do you know the {a} of {t}?",
    "Can you tell me the {a} of {t}?",
    "Could you look up the {a} of {t}?",
    "I would like to know the {a} of {t}.",
    "Find out the {a} of {t}.",
    "About {t}: what is the {a}?",
    "{t}, what is its {a}?",
    "{t}: {a}?",
    "For {t}, which {a} is right?",
    "Name the {a} of {t}.",
    "We need the {a} of {t}, please.",
    "What {a} does {t} have?",
    "Which {a} has {t}?",
    "Let me know the {a} of {t}.",
    "Any idea about the {a} of {t}?",
    "Somebody asked me for the {a} of {t}.",
    "I forgot the {a} of {t}.",
    "Remind me of the {a} of {t}.",
    "Help me with the {a} of {t}.",
    "Who knows the {a} of {t}?",
    "I must fill in the {a} of {t}.",
    "Search for the {a} of {t}.",
    "Check the {a} of {t} for me.",
    "What would be the {a} of {t}?",
    "What do the books say about the {a} of {t}?",
    "There is {t}. What is its {a}?",
    "I read about {t}. Its {a}?",
    "Think of {t}. Which {a} is it?",
    "With {t} in mind, say its {a}.",
    "{t} has what {a}?",
    "{a} of {t}?",
    "{a} of {t}",
    "{a}, {t}",
    "{t} {a}",
    "{t}; I want its {a}.",
    "the {a} that {t} has",
    "Is the {a} of {t} known?",
    "My question is about {t}: its {a}.",
    "We could not agree on the {a} of {t}.",
    "State the {a} of {t}.",
    "Give the {a}, for {t}.",
)
"""Questions that any noun fits."""
APART = (
    "What is the {a} of the {k} that is called {x}?",
    "There is a {k} with the name {x}. What is its {a}?",
    "I mean the {k} {x}. Which {a} does it have?",
    "{x} is a {k}. What is its {a}?",
    "{x}, a {k}: which {a}?",
    "What {a} has {x}? It is a {k}.",
    "Do you know {x}? The {k}. I need the {a}.",
    "Of a {k} by the name {x}, give the {a}.",
    "A {k}, {x}. Its {a}, please.",
    "The {k} in question is {x}; the {a} is missing.",
    "For the {k} {x}, find the {a}.",
    "In my notes, {x} is a {k}, but its {a} is not there.",
)
"""Questions that say the kind of thing and its name apart."""
NAMED = ("A {s} question: {q}", "In {s}: {q}", "This is about {s}. {q}")
"""Frames that say the subject."""
