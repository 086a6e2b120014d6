"""What a model is asked when it writes domains and examples; their sha256 are in the provenance of what it wrote."""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property

SLOT = re.compile(r"<<([a-z_]+)>>")


@dataclass(frozen=True)
class Prompt:
    """A text with slots such as `<<subject>>`."""

    text: str

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def fill(self, **values: str) -> str:
        """The text with every slot filled; what a value holds is never taken for a slot."""
        assert set(SLOT.findall(self.text)) == set(values)
        return SLOT.sub(lambda slot: values[slot[1]], self.text)


SYSTEM = Prompt(
    "You write data for training assistants that call tools. Reply with one JSON object of the schema below and "
    "nothing else. Everything is made up: no real persons, firms or private data, and nothing from a benchmark.\n\n"
    "The JSON schema of the object:\n<<schema>>"
)

REPAIR = Prompt("That is refused: <<reason>>\nSend the whole object again with this corrected.")

SHORTER = Prompt(
    "Your last reply to this was cut off after <<tokens>> tokens, thoughts included, and is lost. Think briefly, and "
    "send the whole object, as short as the request allows."
)

SUBJECTS = Prompt(
    """Name <<count>> subjects of everyday business, each a world with records that people look up and change, unlike
these:
<<taken>>.
`subjects`: objects of `name` (one lower-case word, underscores allowed) and `subject` (one sentence: who asks,
what is recorded, what is changed)."""
)

SCHEMA = Prompt(
    """Write the database of a domain: <<subject>>.

`schema_sql`: SQLite, plain `create table` and `create index` statements only, 3 to 8 tables. Names are
lower-case words with underscores. Every table has a primary key of text or integer columns. A table refers
(`references`) only to tables before it. Use `not null` and `check` where a rule of the subject asks for it. No
views, triggers, functions or defaults other than literals. Time is whole days since an opening day; today is
the one row of a table `clock(id integer primary key check (id = 1), day integer not null)`, so that nothing
depends on the real clock. Money is whole dollars.
`policy`: Markdown that starts with a `# ` heading: 4 to 10 rules that the domain's tools keep, one a line."""
)

ENTRIES = Prompt(
    """A domain: <<subject>>. Its database:

<<schema>>

Entries so far (the first of each table):
<<entries>>

Write <<count>> entries of table `<<table>>` that a careful person would believe: made-up short names, each
different; values that vary; every reference an existing entry; every rule of the schema kept. `rows`: objects
with the table's columns."""
)

TOOLS = Prompt(
    """A domain: <<subject>>. Its database:

<<schema>>

Its policy:
<<policy>>

Entries (the first of each table):
<<entries>>

Write 8 to 16 tools, most of them reading, at least three writing. A tool is:
- `name`: lower-case words with underscores; `description`: one short line.
- `parameters`: by name, `{"type": "string" | "integer" | "number" | "boolean", "minimum": …}`.
- `preconditions`: a `query` that must return a row, `otherwise` the refusal, in which `{parameter}` stands for
  its value. They check that what is named exists, and every rule of the policy.
- `statements`: SQL on the domain's own tables, run in order in one transaction, with `:parameter` for the
  arguments; the last one that returns rows gives the result. Only select, insert, update and delete; no clock,
  randomness, pragma or recursion.
A reading tool returns one row of at most four columns, or a list of at most 20 rows."""
)

INTENTS = Prompt(
    """A domain: <<subject>>. Its database:

<<schema>>

Its tools:
<<tools>>

Entries (the first of each table):
<<entries>>

Write the requests that people make there. `split_by`: the kinds of entity, such as customer, by which examples
are parted. `intents`, 12 to 24 of them, both lookups and changes, of one to three calls, using every tool at
least once:
- `slots`: a query that reads the tables; every row of it makes one request. It must give only rows for which
  the calls are not refused and the answer is single and right.
- `about`: by kind of entity the slot that names it; at least one kind of `split_by`.
- `wordings`: two or more ways to ask in at most 18 plain words, with `{slot}`.
- `calls`: the tools to call in order; an argument `{slot}` has the slot's own value. Every argument must stand
  in the wording or in the result of an earlier call.
- `answer`: the right answer as short as can be, with `{slot}`; `communicate`: what an answer must mention,
  which must stand in a result. For a change it is what the last call returns."""
)

TASK = Prompt(
    """A domain with this policy:
<<policy>>

Its tools:
<<tools>>

Entries (a few of each table):
<<entries>>

Write one request of a user that uses the tool `<<focus>>`, in your own natural words, at most 50 of them:
- `instruction`: what the user writes. It does not name tools, and does not say the answer.
- `category`: lookup when nothing changes, change when something does.
- `calls`: the calls that solve it, in order, one to five. Every argument must stand in the instruction, in
  `facts` or in the result of an earlier call.
- `communicate`: the words and numbers that a right answer must mention, exactly as the results show them, one
  to three.
- `answer`: a right answer in one short sentence.
- `facts`: empty; or, where the user leaves something out and tells it when asked, by the word that asks for it."""
)

EVOLVE = Prompt(
    """A domain with this policy:
<<policy>>

Its tools:
<<tools>>

Entries (a few of each table):
<<entries>>

A request with its solution:
<<parent>>

Write a harder one from it (<<how>>), in the same form, of at most 50 words. It needs more calls than this one,
up to five; every argument must stand in the instruction, in `facts` or in the result of an earlier call, and
the instruction does not say the answer."""
)

PREFERENCE = Prompt(
    """An assistant may ask these experts:
<<tools>>

Write one wish that a user adds to any question, in your own natural words, at most 20 of them: a wish of the kind
`<<kind>>`.
- cheap: little money; fast: little time; accurate: a right answer, whatever it costs. They name no expert, price or
  time.
- prefer: a liking for one expert, by its name, or for those that are good at one subject.
- avoid: a dislike of one expert, by its name, or of all whose call costs more cents, or takes more seconds, than a
  number that you name (write it with the word cents or seconds).
`kind`; `words`; `tools`: the names of all the experts that are liked or disliked, empty for the first three kinds."""
)

PREFERENCE_READ = Prompt(
    """An assistant may ask these experts:
<<tools>>

A user adds this wish to a question: <<words>>

What is wished for? `kind`: cheap (little money), fast (little time), accurate (a right answer, whatever it costs),
prefer (a liking for some of the experts) or avoid (a dislike of some). `tools`: for prefer the names of all the
experts that are liked, for avoid of all that are disliked (those over a limit, if one is named); else empty."""
)

WAYS = (
    "join it with a second wish on the same thing",
    "join it with a second wish on another thing",
    "add a condition that has to be looked up first",
    "name something only by what leads to it, so that it has to be looked up first",
)
