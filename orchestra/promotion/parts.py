"""Parts of the decision page that change after it was written: the verdict, the answer, the lineage, the versions."""

import re
from typing import Any

from markupsafe import Markup

from orchestra.promotion.approval import Approval
from orchestra.promotion.lineage import Node, tree
from orchestra.promotion.sections import Table
from orchestra.promotion.template import MACROS
from orchestra.text import in_markdown

NAME = re.compile(r'data-part="(\w+)"')
SAID = re.compile(r"^`?(A person must answer|Nobody answered|Approved|Refused) .*$", re.MULTILINE)
"""An approval's line, in whichever state it was; as code where its words could become a link."""
WHILE_ASKED = re.compile(r"^\w+\.(.*?) (?:A person must answer|Nobody answered|Approved|Refused) .*")
"""The first line of a decision as lines of text, with an approval's line at its end."""
TAKEN_BACK = "**Rolled back by its canary**"
TITLE = '<title data-part="title">{{ title }}: {{ name }}</title>'
BADGE = """<span data-part="badge" class="badge{{ ' yes' if promoted }}">{{ name }}</span>"""
ANSWER = '<p data-part="approval">{{ line }}</p>'
LINEAGE = '<pre data-part="lineage" aria-label="Lineage">{{ lines }}</pre>'
HISTORY = MACROS + "<section data-part=\"history\">{{ grid('Versions', table, texts=(1, 2, 5, 6)) }}</section>"


def verdict(title: str, name: str, promoted: bool) -> tuple[Markup, Markup]:
    """The page's title and its badge."""
    return rendered(TITLE, title=title, name=name), rendered(BADGE, name=name, promoted=promoted)


def is_about(html: str, title: str) -> bool:
    """Whether the page has that title, whatever its verdict."""
    return str(rendered(TITLE, title=title, name="")).removesuffix("</title>") in html


def answer(approval: Approval | None) -> Markup:
    """What a person said, or is asked; nothing where nobody is."""
    return Markup("") if approval is None else rendered(ANSWER, line=approval.line)


def renewed_description(text: str, answered: Approval, name: str) -> str:
    """The decision in Markdown that was written when a person was asked, with the answer; a later one replaces it."""
    text = re.sub(r"^\*\*\w+\*\*", f"**{name}**", text)
    return SAID.sub(lambda _: in_markdown(answered.line), text, count=1)


def renewed_summary(text: str, answered: Approval, name: str) -> str:
    """The same of the decision as lines of text, of which the first says what was decided and asked."""
    return WHILE_ASKED.sub(lambda found: f"{name}.{found[1]} {answered.line}", text, count=1)


def description_taken_back(text: str, found: str) -> str:
    """The decision in Markdown under what a canary found of the version afterwards; unchanged where it says so."""
    if text.startswith(TAKEN_BACK):
        return text
    return f"{TAKEN_BACK}\n\n{in_markdown(found)}\n\nThe gate's decision before that:\n\n{text}"


def lineage(node: Node | None) -> Markup:
    """The tree of what the version was made of."""
    return rendered(LINEAGE, lines="not known" if node is None else "\n".join(tree(node)))


def history(table: Table) -> Markup:
    """The versions, newest first."""
    return rendered(HISTORY, table=table)


def rendered(template: str, **values: Any) -> Markup:
    """The HTML of a part."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return Markup(environment.from_string(template).render(**values).strip())


def renewed(html: str, *parts: str) -> str:
    """A page that was written earlier, each part in the place of the old one of its name."""
    for part in filter(None, parts):
        found = NAME.search(part)
        assert found is not None, "a part says its name"
        written = re.compile(rf'<(\w+) data-part="{found[1]}".*?</\1>', re.DOTALL)
        html = written.sub(lambda _, new=part: new, html, count=1)  # type: ignore[misc]
    return html
