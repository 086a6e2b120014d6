"""Texts without what nobody should read in a trace: keys, passwords, e-mail addresses, card numbers, and phone numbers
in their international form.

The patterns of tokens follow those of detect-secrets, which itself does not fit: its plugins read files line by line,
name what they find without its place, look for JSON and quotes of source code, and take words of high entropy, which
ordinary identifiers are.
"""

import html
import re
from collections.abc import Callable
from itertools import takewhile

from orchestra.text import USERINFO

REDACTED = "[redacted]"
LONG = 16
"""Letters from which a value is no word of a sentence: `the secret: work`."""
REACH = 16_000
"""Characters that are read beyond a cut: a secret that is recognised by its end has fewer."""
Spelling = str | Callable[[re.Match[str]], str]

_Q = r"""(?:\\*["'`]|%(?:25)*2[27]|&(?:quot|apos|\#0*3[49]|\#x0*2[27]);|\\+u002[27])"""
"""A quotation mark, escaped as often as it may be in JSON, an address or HTML."""
_COLON = r"(?:[:=]|=>|%(?:25)*3[ad]|\\+u003[ad]|&\#0*(?:58|61);|:=)"
_GAP = r"(?:[ \t]|\\+[nrt]|%20|\+(?=[\"'%]))"
_NAMED = r"""(?:pass(?:word|wd|phrase|code)|pwd|pw|secret(?:[_-]?(?:access[_-]?)?key)?|signature
    |(?:api|access|auth|private|secret|signing|encryption|account|shared|subscription)[_-]?key
    |token|credentials?|connection[_-]?string|cookie|session[_-]?id)"""

_AFTER_NAME = re.compile(
    rf"""(?ix) (?<![a-z0-9_.-])
    (?P<head> [a-z0-9_.-]{{0,60}}? (?P<name>{_NAMED}) {_Q}? \]? [ \t]{{0,8}} (?P<sign>{_COLON}) (?:{_GAP}|\s){{0,8}} )
    (?: (?P<open>["'`]{{1,3}}) (?P<plain> (?: [^"'`\\\0] | \\. ){{1,4000}} )
      | (?P<slashed>\\+["']{{1,3}}) (?P<inner> (?: (?! (?<!\\) (?P=slashed) ) [^\0] ){{1,4000}} )
      | (?P<kept> (?:null|none|true|false|undefined|nil|optional|required|string|str|int|number)\b (?!\S) )
      | (?P<bare> (?!{_Q}|\\|\[redacted\]) [^\s,;&"'`<>(){{}}\[\]]{{1,4000}} ) )"""
)
"""`password: x`, `"api_key": "x y"`, `TOKEN=x`, `client%5Fsecret=x`: a name that says so, a sign, a value."""
_SAID = re.compile(
    r"(?i)(\b(?:pass(?:word|phrase|code)|pin|api[ _-]?key|token|secret) is:?\s{1,4}[\"'`]?)"
    r"(?=[^\s0-9!@#$%^&*_]{0,60}[0-9!@#$%^&*_])(?!\[redacted\])[^\s\"'`]{4,400}"
)
_TAGGED = re.compile(rf"(?ix) (<[a-z0-9_.:-]{{0,60}}?{_NAMED}\b[^<>]{{0,200}}>) [^<>]{{1,4000}} (?=</)")
_FLAG = re.compile(
    rf"(?i)(?<![\w-])(--?(?:password|passwd|pwd|token|secret|api-?key|access-?key)[ =])(?!\[redacted\]|{_Q})\S+"
)


def _argument(commands: str, flag: str, before: str = "") -> re.Pattern[str]:
    """The secret that a command is given after a flag, as a shell takes it or in a list: `mysql -pX`, `["-p", "X"]`.

    `before`: what of the same word stands before it, such as `user:`.
    """
    return re.compile(
        rf"""(?x) (?<![\w.-]) (?P<head> (?i:{commands}) (?:\.exe)? (?=[\s"'\\]) (?:[^\n;|&]|\\\n){{0,200}}?
        (?: (?<=\s) {flag} (?: = | (?:[ \t]|\\\n){{1,8}} (?!-) )?+ (?P<quote>["'])? {before}
          | (?P<listed>(?<=["'])) {flag} (?: ["'] [ \t]{{0,8}} , \s{{0,8}} ["'] (?!-) )?+ {before} ) )
        (?!\[redacted\]|{_Q})
        (?(quote) (?:(?!(?P=quote))[^\n]){{1,400}}
          | (?(listed) [^"'\n]{{1,400}} | (?:[^\s"'`;|&<>\\]|\\(?!["'nrtu])){{1,400}} ) )"""
    )


_USER = r"(?: [^\s:\"'`;|&<>\\]{0,200} : )"
_ARGUMENTS = (
    _argument(
        r"mysql\w{0,12} | mariadb(?:-\w{1,12})? | sshpass | mongo(?:sh|dump|restore|export|import|stat|top|files)?"
        r" | cqlsh | 7z[ar]? | (?:un)?rar | (?:docker|podman|nerdctl|buildah|skopeo|helm|oras|az|oc) [ \t\"',]+"
        r" (?:registry [ \t\"',]+)? login",
        "-p",
    ),
    _argument("redis-cli", "-a"),
    _argument(r"ldap[a-z]{3,10}", "-w"),
    _argument(r"sqlcmd | bcp | mosquitto_[pr]\w{1,4} | mosquitto_sub | ipmitool | (?:un)?zip", "-P"),
    _argument(r"curl | wget", r"(?: -[a-zA-Z\#]{0,6}[uU] | --(?:proxy-)?user )", _USER),
    _argument(r"https? | xh", r"(?: -a | --auth )", _USER),
    _argument("smbclient | rpcclient", r"(?: -U | --user )", r"(?: [^\s%\"'`;|&<>\\]{0,200} % )"),
    _argument("openssl", r"-pass(?:in|out)?", "(?: pass: )"),
)
"""Secrets that only the command says are some: `-p` is a port for one, a folder for another."""
_FLAG_NAME = r"""--?(?:[a-z0-9]{1,20}[-_]){0,3}
    (?:password|passwd|passphrase|pwd|token|secret|(?:api|access|secret|private)-?key)"""
_QUOTED_FLAG = re.compile(
    rf"""(?xi) (?P<head> (?<![\w-]) {_FLAG_NAME} (?: (?P<listed>["'][ \t]{{0,8}},\s{{0,8}}["']) (?!--)
        | (?:=|[ \t]{{1,8}}) (?P<quote>["'])? ) )
        (?!\[redacted\]|{_Q}|--)
        (?(quote) (?:(?!(?P=quote))[^\n]){{1,400}} | (?(listed) [^"'\n]{{1,400}} | [^\s"'`<>\\]{{1,400}} ) )"""
)
"""`--db-password 'two words'`, `["--token", "x"]`."""
_AUTHORIZATION = re.compile(
    rf"(?i)(\b(?:proxy-)?authorization{_Q}?[ \t]*{_COLON}{_GAP}{{0,8}}{_Q}?)"
    r"((?:basic|bearer|digest|token|negotiate|apikey|aws4-hmac-sha256)(?:[ \t]|\+|%20)+)?(?!\[redacted\])"
    r"(?:(?<=[ +0])[^\s\"'`<>\\]{1,4000}|[^\r\n\"'`<>\\]{1,4000})"
)
_SCHEME = re.compile(
    r"(?i)(\b(?:bearer|basic)(?:[ \t]|\+|%20){1,8})(?=[a-z0-9._~+/=-]*[0-9+/=_])[a-z0-9._~+/=-]{8,4000}"
)
_PEM = re.compile(
    r"-----BEGIN(?: |%20|\+)[A-Z0-9 %+]{0,40}(?:PRIVATE(?: |%20|\+)KEY|PGP MESSAGE)[A-Z %+]{0,20}-----"
    r"(?:(?!-----(?:BEGIN|END))[^\0]){0,20000}(?:-----END[A-Z0-9 %+]{0,60}-----)?"
)
TOKENS = re.compile(
    r"""(?x) (?<![A-Za-z0-9]) (?:
      (?:sk|pk|rk|whsec)[-_](?=[A-Za-z_-]{0,399}+[0-9])[A-Za-z0-9_-]{12,400}   # OpenAI, Anthropic, Stripe
    | ork_[A-Za-z0-9_-]{12,400}                                               # this gateway
    | gh[pousr]_[A-Za-z0-9]{16,400} | github_pat_[A-Za-z0-9_]{16,400}         # GitHub
    | gl(?:pat|dt|rt|cbt|ptt|ft|soat)-[A-Za-z0-9_.-]{12,400}                  # GitLab
    | xox[abeoprs]-[A-Za-z0-9-]{8,400} | xapp-[A-Za-z0-9-]{8,400}             # Slack
    | gsk_[A-Za-z0-9]{16,400} | (?:xai|pplx|csk)-[A-Za-z0-9]{16,400}          # Groq, xAI, Perplexity, Cerebras
    | nvapi-[A-Za-z0-9_-]{16,400} | r8_[A-Za-z0-9]{16,400}                    # NVIDIA, Replicate
    | dapi[a-f0-9]{32} | gl(?:sa|c)_[A-Za-z0-9_=+/]{20,400}                   # Databricks, Grafana
    | lsv2_(?:pt|sk)_[A-Za-z0-9_]{16,400}                                     # LangSmith
    | hv[sbr]\.(?=[A-Za-z_-]{0,399}+[0-9])[A-Za-z0-9_-]{20,400}               # Vault
    | hf_[A-Za-z0-9]{12,400} | npm_[A-Za-z0-9]{20,400} | pypi-[A-Za-z0-9_-]{16,400} | dop_v1_[a-f0-9]{20,100}
    | tvly-[A-Za-z0-9_-]{12,400} | dckr_pat_[A-Za-z0-9_-]{12,400} | shp(?:at|ca|pa|ss)_[a-fA-F0-9]{16,100}
    | (?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[0-9A-Z]{16}                           # AWS
    | AIza[A-Za-z0-9_-]{30,100} | ya29\.[A-Za-z0-9_-]{16,1000} | GOCSPX-[A-Za-z0-9_-]{16,100}   # Google
    | SG\.[A-Za-z0-9_-]{16,100}\.[A-Za-z0-9_-]{16,100} | SK[a-f0-9]{32} | AC[a-f0-9]{32} | key-[a-f0-9]{32}
    | [0-9]{8,10}:AA[A-Za-z0-9_-]{33} | age-secret-key-1[a-z0-9]{50,80} | AGE-SECRET-KEY-1[A-Z0-9]{50,80}
    | eyJ[A-Za-z0-9_-]{8,400}\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*             # JSON Web Tokens
    )"""
)
_SIGNED = re.compile(
    r"(?i)((?<![a-z0-9_.-])sig=)(?=[a-z%+/_-]{0,400}+[0-9])(?!\[redacted\])[a-z0-9%+/_-]{24,400}={0,2}"
)
"""The signature of an address of Azure's store."""
_HOOK = re.compile(r"(?i)(hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/webhooks/)[\w/-]{8,400}")
_MAIL = re.compile(
    r"(?<![\w.%+-])[\w.%+-]{1,64}(?:@|%(?:25)*40|&#(?:0*64|x0*40);|\\u0040)"
    r"[\w-]{1,63}(?:\.[\w-]{1,63})+"
)
CARDS = (
    *(
        re.compile(rf"(?<!\w)(?=({form})(?!\w))")
        for form in (
            r"\d{4}([ -])\d{4}\2\d{4}\2\d{4}",
            r"\d{4}([ -])\d{4}\2\d{4}\2\d{4}\2\d{3}",
            r"\d{4}([ -])\d{6}\2\d{4,5}",
            r"\d{13,19}",
        )
    ),
    re.compile(r"\b(\d(?:[ -]?\d){12,18})\b"),
)
"""Numbers of cards as they are printed, also beside other digits (a date, a code), and grouped in any way."""
PHONE = re.compile(r"(?<![\w.])\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d(?:[ .-]?\d){6,11}\b")


def _value(found: re.Match[str]) -> str:
    """What stands after a name, but for a word that says that there is nothing, and for a word of a sentence."""
    bare = found["bare"]
    worded = found["sign"] == ":" and not found["name"].lower().startswith(("pass", "pw"))
    if found["kept"] is not None or (bare and worded and len(bare) < LONG and not re.search(r"[0-9_+/=~]", bare)):
        return found[0]
    return f"{found['head']}{found['open'] or found['slashed'] or ''}{REDACTED}"


PATTERNS: tuple[tuple[re.Pattern[str], Spelling], ...] = (
    (_PEM, REDACTED),
    (USERINFO, rf"\1{REDACTED}@"),
    (_AUTHORIZATION, lambda found: f"{found[1]}{found[2] or ''}{REDACTED}"),
    (_SCHEME, rf"\1{REDACTED}"),
    (_HOOK, rf"\1{REDACTED}"),
    (TOKENS, REDACTED),
    (_SIGNED, rf"\1{REDACTED}"),
    (_AFTER_NAME, _value),
    (_SAID, rf"\1{REDACTED}"),
    (_TAGGED, rf"\1{REDACTED}"),
    (_QUOTED_FLAG, rf"\g<head>{REDACTED}"),
    (_FLAG, rf"\1{REDACTED}"),
    *((pattern, rf"\g<head>{REDACTED}") for pattern in _ARGUMENTS),
    (_MAIL, REDACTED),
)


_ESCAPE = re.compile(
    r"%(?:25)*([0-9a-fA-F]{2})|(?<!\\)\\++(?:u00([0-9a-fA-F]{2})|([\"'/nrt]))|&#x0*([0-9a-fA-F]{2});|&(\w{2,6}|#\d{2,5});"
)
_MEANT = {"n": "\n", "r": "\r", "t": "\t"}


def redact(text: str) -> str:
    """The text with `[redacted]` in their place. Numbers without the check digit of a card are left as they are."""
    for pattern, instead in PATTERNS:
        text = pattern.sub(instead, text)
    if _ESCAPE.search(text):
        text = _redact_escaped(text)
    return PHONE.sub(REDACTED, _redact_cards(text))


def redact_start(text: str, size: int) -> str:
    """The same for the first `size` characters of a long text, whose rest costs no time.

    Read up to there and beyond, a text differs from where the cut goes through a secret: that much is left out.
    """
    if len(text) <= size + REACH:
        return redact(text)
    pairs = zip(redact(text[: size + REACH]), redact(text[:size]), strict=False)
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) + "…"


def _redact_escaped(text: str) -> str:
    """The same for what is found once JSON's, addresses' and HTML's escapes are read; the text around keeps them."""
    shown: list[str] = []
    places: list[int] = []
    at = 0
    for found in _ESCAPE.finditer(text):
        shown.append(text[at : found.start()])
        places += range(at, found.start())
        shown.append(one := _meant(found))
        places += [found.start()] * len(one)
        at = found.end()
    plain = "".join([*shown, text[at:]])
    places += range(at, len(text) + 1)
    spans = []
    for pattern, instead in PATTERNS:
        for match in pattern.finditer(plain):
            new = match.expand(instead) if isinstance(instead, str) else instead(match)
            if new != match[0]:
                same = takewhile(lambda pair: pair[0] == pair[1], zip(new, match[0], strict=False))
                kept = len(list(same))
                spans.append((places[match.start() + kept], places[match.end()]))
    made, at = [], 0
    for start, end in sorted(spans):
        if start >= at:
            made += [text[at:start], REDACTED]
        at = max(at, end)
    return "".join([*made, text[at:]])


def _meant(found: re.Match[str]) -> str:
    """The character that an escape stands for."""
    if found[3]:
        return _MEANT.get(found[3], found[3])
    code = found[1] or found[2] or found[4]
    return chr(int(code, 16)) if code else html.unescape(found[0])


def _redact_cards(text: str) -> str:
    made, at = [], 0
    for start, end in sorted(found.span(1) for form in CARDS for found in form.finditer(text) if _luhn(found[1])):
        if start >= at:
            made += [text[at:start], REDACTED]
        at = max(at, end)
    return "".join([*made, text[at:]])


def _luhn(text: str) -> bool:
    """Whether the last digit is the check digit of the others (ISO/IEC 7812-1)."""
    digits = [int(one) for one in text if one.isdigit()][::-1]
    return (sum(digits[::2]) + sum(sum(divmod(2 * one, 10)) for one in digits[1::2])) % 10 == 0
