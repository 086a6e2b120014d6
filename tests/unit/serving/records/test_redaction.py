"""What nobody should read is gone from a text, and all else is left."""

import html
import json
import random
import string
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from orchestra.serving.records.redaction import REACH, REDACTED, redact, redact_start
from orchestra.serving.wire.request import MAX_BODY
from tests.support.generated import seeds


@pytest.mark.parametrize(
    "secret",
    [
        "anna.b+c@mail.example.org",
        "sk-proj-abcdefghijklmnop1234",
        "ork_0123456789ab_" + "x" * 43,
        "AKIAABCDEFGHIJKLMNOP",
        "4111 1111 1111 1111",
        "5500005555555559",
        "3782 822463 10005",
        "müller@münchen.example.org",
        "+49 (151) 2345 6789",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    ],
)
def test_secrets_are_gone_and_what_stands_around_them_stays(secret: str) -> None:
    assert redact(f"before {secret} after") == f"before {REDACTED} after"


@pytest.mark.parametrize(
    "number", ["4111 1111 1111 1111", "4111-1111-1111-1111", "4111111111111111", "3782 822463 10005"]
)
@pytest.mark.parametrize("text", ["{} 12/27 123", "qty 2 {}", "2026-11-29 {}", "{} 04 29", "7 {} 123"])
def test_digits_beside_a_card_s_number_do_not_hide_it(number: str, text: str) -> None:
    assert redact(text.format(number)) == text.format(REDACTED)


def test_a_token_after_bearer_is_gone() -> None:
    assert redact("Authorization: Bearer abcdef123456 ok") == f"Authorization: Bearer {REDACTED} ok"


@pytest.mark.parametrize(
    "text",
    ["what is 4111111111111112*3?", "3.14159265358979", "order 1234567890", "a@b", "+5 is more than 4", "desk-top"],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


PIECES = [
    "-----BEGIN PRIVATE KEY-----",
    "password",
    "a_",
    "=",
    '"',
    "%25",
    "token: ",
    "http://",
    "eyJ",
    "-",
    ".",
    "sk-",
    "ork_",
    "AKIA",
    "bearer ",
    "password:",
    "a",
    "@",
    "+1",
    "(",
    "4",
    " ",
    "ab12",
    "\n",
    "curl ",
    "mysql ",
    "-p",
    " -u",
    "docker login ",
    "--a-",
    "'",
    "\\",
    "%25",
    "&#x0",
]


@pytest.mark.parametrize("seed", seeds(60, 5))
def test_no_text_of_a_request_takes_long(seed: int) -> None:
    """Repeated beginnings of secrets, as long as a body may be: their cost grows with the length alone."""
    rng = random.Random(seed)
    piece = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 4)))
    piece = {0: "eyJ-", 1: "sk-", 2: "\\"}.get(seed, piece)
    text = piece * (MAX_BODY // len(piece) // 4) + rng.choice(["", "!", "."])
    began = time.thread_time()
    redact(text)
    assert time.thread_time() - began < 2


ALPHABET = string.ascii_letters + string.digits
WORDING = Path(__file__).parents[3] / "data" / "wording"


def chars(rng: random.Random, size: int, of: str = ALPHABET) -> str:
    return "".join(rng.choices(of, k=size))


NAMED = [
    "password=%s", "password: %s", "Password is %s", "api_key=%s", 'API_KEY = "%s"', "token: %s", "?token=%s&x=1",
    "Authorization: Basic %s", "Authorization: Bearer %s", "authorization=%s", "Proxy-Authorization: %s",
    '{"password": "%s"}', '{"password": "a\\"%s"}', '{"a": {"client_secret":"%s"}}', "'passwd': '%s'", "pwd:%s;",
    '{"headers": {"X-Api-Key": "%s"}}', '"accessToken":"%s"', '"awsSecretAccessKey":"%s"', "DB_PASSWORD=%s",
    "export HF_TOKEN=%s", "--password %s", "--api-key=%s", "Cookie: session=%s", "<password>%s</password>",
    'password = """%s"""', "password:\n  %s", 'passphrase: "two words %s"', "password=>%s", "AccountKey=%s;",
    "SharedAccessSignature=%s", '"private_key": "%s"', 'secret: "first\nsecond %s"', "ldap://user:%s@host/",
    "postgresql://user:%s@host:5432/db", "redis://:%s@host", "see https://%s@host/x", "my api key is %s!",
]  # fmt: skip
TOKENS: list[Callable[[random.Random], str]] = [
    lambda rng: f"github_pat_{chars(rng, 22)}_{chars(rng, 59)}",
    lambda rng: f"gh{rng.choice('pousr')}_{chars(rng, 36)}",
    lambda rng: f"AIza{chars(rng, 35)}",
    lambda rng: f"sk-{rng.choice(['', 'proj-', 'ant-api03-'])}{chars(rng, 39)}7",
    lambda rng: f"xox{rng.choice('abprs')}-{chars(rng, 11, string.digits)}-{chars(rng, 24)}",
    lambda rng: f"{rng.choice(['AKIA', 'ASIA'])}{chars(rng, 16, string.ascii_uppercase + string.digits)}",
    lambda rng: f"glpat-{chars(rng, 20)}",
    lambda rng: f"hf_{chars(rng, 34)}",
    lambda rng: f"eyJ{chars(rng, 20)}.eyJ{chars(rng, 40)}.{chars(rng, 43)}",
    lambda rng: f"ya29.{chars(rng, 60)}",
    lambda rng: f"gsk_{chars(rng, 52)}",
    lambda rng: f"xai-{chars(rng, 80)}",
    lambda rng: f"pplx-{chars(rng, 48)}",
    lambda rng: f"csk-{chars(rng, 48)}",
    lambda rng: f"nvapi-{chars(rng, 30)}-{chars(rng, 33)}",
    lambda rng: f"r8_{chars(rng, 37)}",
    lambda rng: f"dapi{chars(rng, 32, '0123456789abcdef')}",
    lambda rng: f"glsa_{chars(rng, 32)}_{chars(rng, 8, '0123456789abcdef')}",
    lambda rng: f"lsv2_{rng.choice(['pt', 'sk'])}_{chars(rng, 32)}_{chars(rng, 10)}",
    lambda rng: f"hvs.{chars(rng, 12)}7{chars(rng, 12)}",
    lambda rng: f"SG.{chars(rng, 22)}.{chars(rng, 43)}",
    lambda rng: "-----BEGIN RSA PRIVATE KEY-----\n" + "\n".join(chars(rng, 64) for _ in range(4))
    + "\n-----END RSA PRIVATE KEY-----",
]  # fmt: skip
SPELLINGS: list[Callable[[str], str]] = [
    str,
    lambda text: json.dumps({"note": text}),
    lambda text: json.dumps(json.dumps({"note": text})),
    lambda text: quote(text, safe=""),
    html.escape,
    lambda text: f"Look at this:\n{text}\nand answer.",
]


def spelled(template: str, *, least: int, end: int) -> Iterator[tuple[str, str]]:
    """Six spellings of the text, each with six secrets of that many characters before a digit and after it."""
    rng = random.Random(template)
    for spell in SPELLINGS:
        for _ in range(6):
            secret = chars(rng, rng.randint(least, 20)) + rng.choice("0123456789") + chars(rng, end)
            yield secret, spell(template % secret)


@pytest.mark.parametrize("named", NAMED)
def test_what_a_name_says_is_secret_is_gone_however_it_is_spelled(named: str) -> None:
    for secret, text in spelled(named, least=4, end=5):
        assert secret not in redact(text), redact(text)


COMMANDS = [
    "mysql -uroot -p%s shop", "mysqldump -h db -u root -p %s shop > x.sql", "mysqladmin -p'%s' ping",
    "/usr/bin/mysql -p%s", 'mariadb -u root -p"%s"', "mariadb-dump --quick -p%s", "sshpass -p %s ssh me@host",
    "sshpass -p'%s' scp a b:", "mongosh host/db -u me -p %s", "mongodump -p=%s", "cqlsh -u me -p %s host",
    "7z x -p%s a.7z", "rar a -p%s a.rar", "docker login -u me -p %s example.org", "podman login -p %s",
    "helm registry login -u me -p %s host", "az login -p %s", "redis-cli -h host -a %s ping",
    "ldapsearch -x -D cn=me -w %s -b dc=x", "sqlcmd -S host -U sa -P %s", "mosquitto_pub -u me -P %s -t a -m b",
    "ipmitool -I lanplus -U me -P %s power on", "zip -P %s a.zip b", "unzip -P %s a", "curl -u me:%s http://host/",
    "curl -sSLu me:%s host", "curl --user 'me:%s' host", "curl -X POST -ume:%s host", "curl --proxy-user=me:%s host",
    'curl -U "me:%s" host', "curl -fsS \\\n  -u me:%s host", "http -a me:%s host/x", "smbclient //host/x -U me%%z%s",
    "openssl rsa -passin pass:%s -in a", "openssl enc -pass pass:%s", "tool --db-password %s",
    "tool --password 'two words %s'", 'tool --client-secret="two words %s"', "tool -token '%s'",
    '["mysql", "-uroot", "-p%s"]', "['sshpass', '-p', '%s', 'ssh']", '["curl", "-u", "me:%s", "host"]',
    '["--token", "%s"]', "http:" + "//me:%s@part@host/", "https:" + "//me:a@%s@host:1/x",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_is_given_as_its_secret_is_gone(command: str) -> None:
    for secret, text in spelled(command, least=2, end=3):
        shown = redact(text)
        assert secret not in shown and REDACTED in shown, shown
        assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "psql -h db -p 5432 -U me shop", "ssh -p 2222 me@host", "mkdir -p a/b", "docker run -p 80:80 nginx",
        "cp -a x y",
        "mysql -h host -P 3306 shop", "mysql -u root -p < dump.sql", "curl -u me host", "curl -o a:b -H 'x: y' host",
        "curl and mkdir -p are commands; mkdir -p makes folders", "grep -w word file", "git push -u origin main",
        "mysql is a database; use mkdir -p for folders", "tar -a x", "--max-tokens 100", "--tokenizer a", "zip -r a b",
        "redis-cli ping", "nmap -p 1-1000 host", "pip install -U mysql", "the mongo shell | less -p x",
    ],
)  # fmt: skip
def test_flags_of_other_commands_stay(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("number", range(len(TOKENS)))
def test_a_token_is_gone_wherever_it_stands(number: int) -> None:
    rng = random.Random(number)
    for before, after in (("", ""), ("use ", " for it"), ('{"x":"', '"}'), ("(", ")"), ("x=", "&y"), ("\n", ".")):
        for spell in SPELLINGS:
            token = TOKENS[number](rng)
            shown = redact(spell(before + token + after))
            assert token not in shown and not any(part in shown for part in token.split("\n")), shown


def test_the_signature_of_a_signed_address_is_gone() -> None:
    rng = random.Random(0)
    for spell in SPELLINGS:
        secret = f"{chars(rng, 20)}7{chars(rng, 22)}"
        shown = redact(spell(f"https://a.example.org/c?sv=2020&sig={secret}%3D&se=1"))
        assert secret not in shown and "se" in shown, shown


def ordinary_texts() -> list[str]:
    files = [WORDING / f"{name}.jsonl" for name in ("wishes", "questions", "first_contact")]
    records = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    return [value for record in records for value in record.values() if isinstance(value, str)]


def test_ordinary_questions_and_wishes_stay() -> None:
    texts = ordinary_texts()
    assert len(texts) > 900
    assert [text for text in texts if redact(text) != text] == []


@pytest.mark.parametrize(
    "text",
    [
        '{"usage": {"completion_tokens": 512, "max_tokens": 100}}', "The secret: work hard.", "tokens: 500",
        "The password is required.", "what is a token?", "press the key: enter", "The secret is patience",
        "primary key: id", "monkey=banana", "keyboard: qwerty", "cookie: chocolate chip", '"token": null',
        "desk-top-publishing-company", "sk-learn-contributions-team", "basic arithmetic", "a bearer of news",
        "hvs.get_the_longest_row(x)", "sig=inspect.signature(f)", "gsk_total", "xai-based", "sig=0.05",
        "3 * 4 = 12 and 7:30", "http://example.org/a@b", "total: 41.50, status: shipped; id: 1234567890",
    ],
)  # fmt: skip
def test_words_and_numbers_that_only_look_like_it_stay(text: str) -> None:
    assert redact(text) == text


def test_numbers_stay() -> None:
    rng = random.Random(0)
    for _ in range(500):
        number = rng.choice([str(rng.randint(0, 10**9)), f"{rng.uniform(-1e6, 1e6):.4f}", f"{rng.random():.3e}"])
        text = f"What is {number} times {rng.randint(1, 99)}?"
        assert redact(text) == text


@pytest.mark.parametrize("seed", seeds(60, 5))
def test_no_half_of_a_secret_is_left_at_a_cut(seed: int) -> None:
    """Secrets that begin before a cut and end behind it, where others before them have made the text shorter."""
    rng, size = random.Random(seed), 2_000
    secret = chars(rng, 12) + "7" + chars(rng, 12)
    forms = [
        *(token(rng) for token in TOKENS), f"password={secret}", f"http:{'//'}user:{secret}@example.org",
        f"<password>{secret * 90}</password>", f"curl -u me:{secret} host", f"{secret.lower()}@mail.example.org",
        "4111 1111 1111 1111", "+49 (151) 2345 6789",
    ]  # fmt: skip
    for form in rng.sample(forms, 3):
        before = "word " * rng.randint(0, 40) + f"token={chars(rng, 600)} " * rng.randint(0, 2)
        for at in (size, size + REACH):
            place = at - rng.randint(1, len(form) - 1) - len(before)
            text = before + "ab " * (place // 3) + " " * (place % 3) + form
            text += " word" * (1_000 + (size + REACH - len(text)) // 5)
            shown = redact_start(text, size)
            whole = redact(text)
            assert shown.endswith("…") and whole.startswith(shown.removesuffix("…")), (form, shown[-80:])
            assert len(shown) > size - 1_500 - len(form)


def test_a_short_text_is_redacted_whole() -> None:
    text = "word " * 100 + "gsk_" + "a1" * 20
    assert redact_start(text, 10) == redact(text) and redact_start(text, 10).endswith(REDACTED)
