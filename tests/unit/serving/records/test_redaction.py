"""What nobody should read is gone from a text, and all else is left."""

import random
import time

import pytest

from orchestra.serving.records.redaction import REDACTED, redact
from orchestra.serving.wire.request import MAX_BODY


@pytest.mark.parametrize(
    "secret",
    [
        "anna.b+c@mail.example.org",
        "sk-proj-abcdefghijklmnop1234",
        "ork_0123456789ab_" + "x" * 43,
        "AKIAABCDEFGHIJKLMNOP",
        "4111 1111 1111 1111",
        "+49 (151) 2345 6789",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    ],
)
def test_secrets_are_gone_and_what_stands_around_them_stays(secret: str) -> None:
    assert redact(f"before {secret} after") == f"before {REDACTED} after"


def test_a_token_after_bearer_is_gone() -> None:
    assert redact("Authorization: Bearer abcdef123456 ok") == f"Authorization: Bearer {REDACTED} ok"


@pytest.mark.parametrize(
    "text",
    ["what is 4111111111111112*3?", "3.14159265358979", "order 1234567890", "a@b", "+5 is more than 4", "desk-top"],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


PIECES = ["eyJ", "-", ".", "sk-", "ork_", "AKIA", "bearer ", "password:", "a", "@", "+1", "(", "4", " ", "ab12", "\n"]


def test_no_text_of_a_request_takes_long() -> None:
    """Repeated beginnings of secrets, as long as a body may be: their cost grows with the length alone."""
    rng, longest = random.Random(0), 0.0
    for number in range(40):
        piece = "eyJ-" if not number else "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 4)))
        text = piece * (MAX_BODY // len(piece) // 4) + rng.choice(["", "!", "."])
        began = time.thread_time()
        redact(text)
        longest = max(longest, time.thread_time() - began)
    assert longest < 2
