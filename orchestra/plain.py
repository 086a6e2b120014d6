"""Text from outside, made fit for a terminal and a log: what would steer them is spelled out."""

import logging
import re

_STEERING = re.compile(
    # Control characters (of which terminals obey the escape and the C1 ones too), lone surrogates, which no terminal
    # can be sent, and what turns the reading direction around, breaks lines unseen or is never shown.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)


def plain(text: str) -> str:
    r"""The text with such characters as escapes (`\x1b`); line feeds and tabs stay. Nothing to do for most texts."""
    return _STEERING.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def one_line(text: str) -> str:
    """The same, with every run of spaces and line breaks as one space: nobody's text can forge a line of its own."""
    return plain(" ".join(text.split()))


class PlainFormatter(logging.Formatter):
    """Log records as ever, but what they quote steers no terminal and begins no line: tracebacks are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record)).replace("\n", "\n  ")
