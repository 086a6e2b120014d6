"""Texts without what nobody should read in a trace: keys, e-mail addresses, card and phone numbers."""

import re

REDACTED = "[redacted]"
SECRETS = (
    # Keys of well-known services, of this gateway, and what follows `Bearer`.
    re.compile(r"\b(?:sk|pk|rk|ork|ghp|gho|glpat|xox[abpr]|hf)[-_][A-Za-z0-9_-]{12,}"),
    re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
    # A bound on the head: a text of many beginnings would be read to its end from each.
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,400}\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*"),
    re.compile(r"(?i)(?<=\bbearer )[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(?i)(?<=\bpassword[:=])\s*\S+"),
    re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+"),
)
CARD = re.compile(r"\b\d(?:[ -]?\d){12,18}\b")
PHONE = re.compile(r"(?<![\w.])\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d(?:[ .-]?\d){6,11}\b")


def redact(text: str) -> str:
    """The text with `[redacted]` in their place. Numbers without the check digit of a card are left as they are."""
    for pattern in SECRETS:
        text = pattern.sub(REDACTED, text)
    text = CARD.sub(lambda found: REDACTED if _luhn(found[0]) else found[0], text)
    return PHONE.sub(REDACTED, text)


def _luhn(text: str) -> bool:
    """Whether the last digit is the check digit of the others (ISO/IEC 7812-1)."""
    digits = [int(one) for one in text if one.isdigit()][::-1]
    return (sum(digits[::2]) + sum(sum(divmod(2 * one, 10)) for one in digits[1::2])) % 10 == 0
