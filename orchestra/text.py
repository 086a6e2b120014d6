"""Text from outside, made fit to be kept, and for a terminal and a log: what would steer them is spelled out."""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from html.entities import codepoint2name
from urllib.parse import unquote

_STEERING = re.compile(
    # Control characters (of which terminals obey the escape and the C1 ones too), lone surrogates, which no terminal
    # can be sent, and what turns the reading direction around, breaks lines unseen or is never shown: Unicode's default
    # ignorable characters but for those that scripts and emoji need (U+200C, U+200D, U+180B-D, U+180F, U+FE00-F).
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)

SPACES = dict.fromkeys((0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " ")
"""Unicode's other spaces, for `str.translate`: names are written with some of them, such as U+3000 in Japanese."""
_LONE = re.compile("[\ud800-\udfff]")
_USERINFO = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://([^/?#\s]+)@")
USERINFO = re.compile(
    r"(?i)((?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}(?::|%(?:25)*3a)(?:\\*/|%(?:25)*2f){2})"
    r"(?:[^\s/?#\"'<>\\]|\\(?![nrt\"'])){1,1000}(?:@|%(?:25)*40)"
)
"""User and password of any address in a text, after its `scheme://`, also as JSON or another address spells it. The
last @ ends them: a password may hold one."""
_LINKING = re.compile(r"(?i)[\[\]<>@&]|``|:/|www\.|mailto:")
_QUOTE = "'"
HYPHENS = dict.fromkeys((0x2010, 0x2011, 0x2012, 0x2013, 0x2212), "-") | {0x2044: "/"}
"""What is written as a hyphen, a minus sign or a fraction's bar, for `str.translate`."""
_NUMBER = re.compile(r"[+-]?(?:(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
SECRET = "[secret]"
BACKSLASHES = r"\\{1,32}"
"""Before an escape; JSON within JSON doubles them. Without an end, a run of them would take time in its square."""
LONG = 8
"""Characters from which a secret is looked for in other spellings too: a shorter one's would be found in any text."""
_NAMED = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}


def is_text(value: str) -> bool:
    """Whether there is no half of a surrogate pair: JSON can spell one, and no record, file or request can hold it."""
    return value.isascii() or _LONE.search(value) is None


def is_line(value: str) -> bool:
    """Whether there is nothing but what a line shows: letters, marks, signs and spaces of any width."""
    return value.translate(SPACES).isprintable()


def as_text(value: str) -> str:
    """Each half of a surrogate pair as U+FFFD."""
    return _LONE.sub("\ufffd", value)


def digest(text: str) -> str:
    """16 hex digits of a text, be there halves of pairs in it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def plain(text: str) -> str:
    r"""The text with such characters as escapes (`\x1b`); line feeds and tabs stay. Nothing to do for most texts."""
    return _STEERING.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def one_line(text: str) -> str:
    """The same, with every run of spaces and line breaks as one space: no text can forge a line of its own."""
    return plain(" ".join(text.split()))


def in_markdown(text: str) -> str:
    """The same for Markdown: a text that could become a link, an image or HTML there is shown as code.

    Escapes would not do: renderers differ in them, and most link a bare address, some a name after @.
    """
    line = one_line(text)
    if _LINKING.search(line) is None and line.count("`") % 2 == 0:
        return line
    return f"`{line.replace('`', _QUOTE)}`"


def number(text: str) -> Fraction | None:
    """The value of a number as people and programs write it, exactly; None for anything else.

    A comma separates thousands only: 1,234 is a number, 1,5 and 0,888 are none.
    """
    plain_number = text.translate(HYPHENS)
    if _NUMBER.fullmatch(plain_number) is None:
        return None
    try:
        return Fraction(plain_number.replace(",", ""))
    except ValueError:  # Python converts no more than 4,300 digits.
        return None


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """Rows of cells as lines with columns below each other; `numbers`: all columns but the first end flush."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [cell.rjust(size) if numbers else cell.ljust(size) for cell, size in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines


def credentials(address: str) -> list[str]:
    """What is secret in an address `scheme://user:password@host`, as it is written and decoded; longest first."""
    found = _USERINFO.search(address)
    if found is None:
        return []
    whole = found[1]
    password = whole.partition(":")[2] or whole
    return sorted({whole, unquote(whole), password, unquote(password)}, key=len, reverse=True)


def without(text: str, secrets: Iterable[str]) -> str:
    """The text with each of the secrets, the longest first, as `[secret]`: as it is, and as JSON, an address, HTML, a
    program's own quotes, base64 or hexadecimal digits spell it."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, SECRET)
        if len(secret) >= LONG:
            escaped, wholes = _spellings(secret)
            if any(mark in text for mark in "%\\&"):
                text = escaped.sub(SECRET, text)
            text = wholes.sub(SECRET, text)
    return text


def without_passwords(text: str) -> str:
    """The text with the user and password of every address in it as `[secret]`."""
    return USERINFO.sub(rf"\1{SECRET}@", text) if "@" in text or "40" in text else text


@lru_cache(maxsize=256)
def _spellings(secret: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Each character as it is or escaped, and the whole in base64, at any place in what was encoded, or as digits."""
    encoded = secret.encode("utf-8", "surrogatepass")
    wholes = {f"(?i:{encoded.hex()})"}
    for before in range(3):
        # The characters at both ends hold bits of what stands beside the secret.
        whole = base64.b64encode(bytes(before) + encoded)
        first, last = (0, 2, 3)[before], (before + len(encoded)) * 8 // 6
        for part in (whole[first:last], whole[first:last].translate(bytes.maketrans(b"+/", b"-_"))):
            wholes.add(re.escape(part.decode()))
    longest = sorted(wholes, key=len, reverse=True)
    return re.compile("".join(map(_escapes, secret))), re.compile("|".join(longest))


def _escapes(one: str) -> str:
    """A pattern of the ways in which a character is written."""
    number, units = ord(one), one.encode("utf-16-be", "surrogatepass")
    percent = "".join(f"%{byte:02x}" for byte in one.encode("utf-8", "surrogatepass"))
    json = "".join(
        f"u{units[at : at + 2].hex()}" if not at else rf"{BACKSLASHES}u{units[at : at + 2].hex()}"
        for at in range(0, len(units), 2)
    )
    backslashed = [json, rf"U{number:08x}", *([f"x{number:02x}"] if number < 256 else [])]
    named = [_NAMED[one]] if one in _NAMED else [] if one.isalnum() else [re.escape(one)]
    html = [
        f"&#0*{number};",
        f"&#x0*{number:x};",
        *([f"&{codepoint2name[number]};"] if number in codepoint2name else []),
    ]
    ways = [f"(?i:{way})" for way in (percent, *(BACKSLASHES + way for way in backslashed), *html)]
    return f"(?:{'|'.join([re.escape(one), *ways, *(BACKSLASHES + way for way in named)])})"
