"""Which parts of a text are secrets. The rank, the relay and every viewer use these patterns.

The rank redacts a text before it sends it, and a viewer redacts it again before it shows it.
Standard library only, and no pattern is compiled before its first use: the agent pays for its
import in every rank. Every repetition is bounded or cannot overlap the next one, so the time grows
with the length of the text and no faster.

A secret is known by its name (`--auth X`, `"api_key": "X"`), by its shape (`hf_...`, a JWT), by its
place (a password in a URL), or, if none of these applies, by its randomness: a long run of letters
of both cases and digits in no order. Hashes, uuids, paths, and names made of words are kept. A hash
in lower-case hexadecimal is a secret only after a secret's name, because a commit looks the same.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any

HIDDEN = "(redacted)"
TEXT_CHARACTERS_MAX = 4096
"""Longer texts of a rank are cut before, because at most 500 characters of them are shown."""
VALUE_CHARACTERS_MAX = 4000
OPAQUE_CHARACTERS = 20
"""The shortest bare run that is taken for a secret: names and ids that people choose are shorter
or have words in them.
"""

# Of names in lower case with underscores. A name that has one of these is a secret's, whatever else
# stands in it.
_STRONG = re.compile(
    r"secret|passw|passphrase|passcode|pass(?:in|out)$|credential|pwd|mnemonic"
    r"|(?:seed|recovery)_?phrase|(?:api|access|private|signing|encryption|account|license)_?key"
    r"|(?:auth|access)_?token|bearer|authorization|x_amz_(?:credential|signature|security)"
)
_STRONG_WORDS = frozenset(("auth", "oauth", "authkey", "cookie", "jwt"))
# A name that ends so is a secret's unless another of its words says what it counts or is.
_WEAK = re.compile(
    r"(?:token|key|pass|creds?|(?:^|_)(?:sas|pat|sig|otp|pin)|signature)$|(?:^|_)(?:token|pass)_"
)
_INNOCENT = frozenset(
    (
        "n", "num", "max", "min", "total", "per", "count", "len", "length", "size", "dim",
        "head", "heads", "pad", "padding", "eos", "bos", "unk", "mask", "cls", "sep", "special",
        "sort", "cache", "primary", "foreign", "group", "dict", "state", "public", "image",
        "sample", "batch", "value", "query", "forward", "backward", "first", "second", "single",
        "multi", "one", "two", "next", "last", "new", "use", "no", "with", "enable", "disable",
        "skip", "ignore", "missing", "unexpected", "attention", "stuck", "shard", "partition",
        "bypass", "compass", "monkey", "hotkey", "turkey", "keyboard",
    )
)  # fmt: skip
_ABOUT = ("_path", "_file", "_dir", "_type", "_mode", "_timeout")
_NOT_SECRET = re.compile(
    r"(?i)(?:\(redacted\)?|true|false|none|null|yes|no|on|off|auto|str|int|bytes|bool|\*+|\.\.\.)?"
)
"""The values that may follow a secret's name and reveal nothing."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[A-Z]?[a-z]{3,}")
_CHANGE = re.compile(r"[a-z]+|[A-Z]+|[0-9]+")
CHANGES_RATIO, WORDS_RATIO = 0.35, 0.53
"""Limits for random text. Among random letters and digits, six in ten neighbours are of different
kinds; in CamelCase words three. And few letters are in a run of three or more lower-case letters,
with the capital before it."""

# How the tokens of many makers begin, and what follows. Ordinary names begin so too, so a tail that
# may have separators needs `_MIXED`, which names of small letters lack, and another has none.
_MIXED = r"(?=[\w=-]{0,300}(?:[0-9]|[a-z][A-Z]))"
_ALNUM = rf"{_MIXED}[A-Za-z0-9]"
_SHAPES = (
    # Models and data.
    r"hf_oauth_[\w.=-]{16,4000}|(?:hf|api_org)_[A-Za-z0-9]{16,100}|nvapi-[\w-]{24,300}",
    rf"[rs]k[-_](?:live|test|prod|proj|ant|or|svcacct|lit)[-_]{_MIXED}[\w-]{{10,300}}",
    rf"(?:xai|gsk|pplx|csk|KGAT|aph0|esecret)[-_]{_ALNUM}{{20,300}}|tvly-(?:[a-z]{{2,8}}-)?{_ALNUM}"
    r"{20,300}",
    r"(?:[spr]k[-_]|(?:rpa|fw|rf|r8|e2b|ntn|napi|sbp)_|(?:key|fc|ak|as)-)(?=[A-Za-z]{0,300}[0-9])"
    r"[A-Za-z0-9]{20,300}",
    rf"(?:pcsk|tgp_v1|wandb_v1|sb_secret|sm_[aps]at)_{_MIXED}[\w-]{{16,300}}",
    r"(?:jina|lsv2_[ps][tk])_[0-9a-f]{32}[\w-]{0,100}|AQ\.[A-Za-z0-9][\w-]{24,300}",
    r"ABSK[A-Za-z0-9+/]{80,300}={0,2}|eyJhcGlf[\w+/-]{40,4000}={0,2}"
    r"|d(?:api|ose|kea|sapi|ptp)[0-9a-f]{32}(?:-\d)?",
    # Clouds and hosts.
    r"A(?:KIA|SIA|BIA|CCA|3T[A-Z0-9])[0-9A-Z]{16}"
    r"|(?:IQoJb3JpZ2lu|FwoGZXIvYXdz)[\w+/%-]{40,4000}={0,2}",
    r"AIza[\w-]{30,100}|GOCSPX-[\w-]{20,100}|ya29\.[\w.-]{20,2000}|1//0[\w-]{20,200}",
    r"GOOG1E[A-Z0-9]{20,100}|(?:LTAI|AKLT)[A-Za-z0-9]{16,100}|AQVN[\w-]{30,100}",
    r"do[opr]_v1_[\w-]{24,300}|sha256~[\w-]{40,60}|v1\.0-[0-9a-f]{24}-[0-9a-f]{100,200}",
    rf"hv[sbr]\.{_MIXED}[\w-]{{24,300}}|s\.{_ALNUM}{{24}}(?![A-Za-z0-9])"
    r"|dp\.[a-z]{2,6}\.[A-Za-z0-9]{40,60}",
    r"tskey-[a-z]{2,12}-[\w-]{16,300}|dt0[a-z]\d\d\.[A-Za-z0-9.]{60,120}|pul-[0-9a-f]{40}",
    r"(?:HRKU|NRAK|NRII|NRJS)-[\w-]{16,100}|(?:fo1|fm[12][ar]?)_[\w+/,=-]{40,4000}",
    rf"pscale_[a-z]{{2,6}}_[\w=.-]{{20,100}}|(?:hcaik|phc|phx|ory_at|vc[pk])_{_ALNUM}{{24,300}}",
    r"AGE-(?:SECRET-KEY|PLUGIN)-[0-9A-Z-]{10,4000}|A3-[A-Z0-9]{6}(?:-[A-Z0-9]{5,11}){3,5}",
    # Code and packages.
    r"gh[pousr]_(?:[A-Za-z0-9]{16,300}|\d{1,20}_[\w.-]{30,4000})|github_pat_\w{16,300}",
    r"(?:gl(?:pat|ptt|dt|rt|rtr|cbt|ft|ffct|imt|soat|agent|wt|oas)-|GR1348941)[\w.-]{16,300}",
    r"npm_[A-Za-z0-9]{30,300}|pypi-[\w-]{40,300}|dckr_[op]at_[\w-]{20,100}",
    rf"(?:rubygems_|CLOJARS_|oy2|AKC|cmVmdGtu|ATBB|CCIPAT_|API-|pn[ub]_|dbt[csu]_){_ALNUM}{{24,300}}",
    rf"AT[AC]TT3[\w=-]{{20,300}}|(?:sq[apu]|bkua|sntry[su]|rdme|duffel_(?:test|live))_{_MIXED}"
    r"[\w=-]{24,300}|CFPAT-[\w-]{30,60}",
    # Messages, payments, and others.
    r"xox[a-z][.-][\w.-]{8,300}|xapp-[\w-]{8,300}"
    r"|[MNO](?=[\w-]{0,26}[0-9])[\w-]{23,27}\.[\w-]{6}\.(?=[\w-]{0,39}[0-9])[\w-]{27,40}",
    r"SG\.[\w-]{16,100}\.[\w-]{16,100}|x(?:keys|smtps)ib-[0-9a-f]{64}-\w{16}|SK[0-9a-f]{32}",
    r"EAA[A-Za-z0-9][\w-]{60,300}|sq0(?:atp|csp)-[\w-]{20,100}|EZ[AT]K[A-Za-z0-9]{54}",
    rf"(?:whsec|shp(?:at|ss|ca|pa)|lin_(?:api|oauth)|figd|glsa|glc|PMAK|fio-u|p8e)[-_]{_MIXED}"
    r"[\w=-]{24,300}|tfp_[\w=.-]{55,70}|FLWSECK(?:_TEST)?-[\w-]{12,50}",
    r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}|[ps]at(?:\.[\w-]{20,24}){3}|s-s4t2(?:ud|af)-[0-9a-f]{64}",
    # Signed or encrypted; any part may be empty.
    r"eyJ[\w-]{8,4000}(?:\.[\w-]{0,4000}){1,4}",
)
# What stands before a token, and what a text has in which it does: also in a URL (%3D), in a string
# as Python or JSON writes it (\\n), and where a terminal colours it. No word of small letters alone
# begins a token.
_STARTS = (
    ("", r"(?<![A-Za-z0-9])(?![a-z]{0,40}(?:[^\w.~-]|\Z))"),
    ("%", r"(?<=%[0-9A-Fa-f]{2})"),
    ("\\", r"(?<=\\[nrt])"),
    ("\x1b", r"(?<=[0-9;]m)"),
)
STRONG, WEAK = 2, 1


def secret_name(name: str) -> int:
    """STRONG for `AWS_SECRET_ACCESS_KEY`, `--auth`, `trainer.apiKey`; WEAK for what is often a
    secret's, `sort_key` aside; else 0.
    """
    plain = (
        _CAMEL.sub("_", name)
        .lower()
        .replace("-", "_")
        .replace(".", "_")
        .replace(" ", "_")
        .strip("_+~")
    )
    words = plain.split("_")
    if _STRONG.search(plain) or not _STRONG_WORDS.isdisjoint(words):
        return 0 if plain.endswith(_ABOUT) else STRONG
    return WEAK if _WEAK.search(plain) and _INNOCENT.isdisjoint(words) else 0


def is_opaque(run: str) -> bool:
    """Whether letters and digits of this run (no other characters) look drawn by chance."""
    if len(run) < OPAQUE_CHARACTERS or run.isdigit() or run.islower() or run.isupper():
        return False
    if run.startswith("_Z") or not any("0" <= character <= "9" for character in run):
        return False
    changes = len(_CHANGE.findall(run)) - 1
    words = sum(len(word) for word in _WORD.findall(run))
    return changes >= CHANGES_RATIO * (len(run) - 1) and words <= WORDS_RATIO * len(run)


def _bare(match: re.Match[str]) -> str:
    text = match[0]
    if text.startswith("_Z"):
        # A C++ symbol.
        return text
    if "/" in text and len(text.rstrip("=")) != 40 and not text.endswith("=") and "+" not in text:
        # A path; of AWS's secrets, which may have a slash, each is as long as the next.
        return text
    joined = re.sub(r"[+/=_-]", "", text)
    # An experiment's name has a separator every few letters, a token that is safe in a URL one in
    # thirty.
    few = "/" in text or "+" in text or 10 * (len(text) - len(joined)) <= len(text)
    return (
        HIDDEN
        if any(is_opaque(part) for part in ([joined] if few else re.split("[-_]", text)))
        else text
    )


def _is_secret_value(name: str, value: str) -> bool:
    """Whether the value of this option or variable is a secret."""
    return bool(secret_name(name)) and not _NOT_SECRET.fullmatch(value)


def _is_secret_in_text(name: str, value: str, tight: bool = False) -> bool:
    """Whether the value after a name within a text is a secret. Both keep their quotes, because
    source code is full of names such as key and token.

    `tight`: only `=` is between the two, as in command lines and logs.
    """
    inner = value.strip("\\\"'")
    if name == "-p":
        return _may_be_password_after_p(inner) and _is_guess(inner)
    certain = secret_name(name)
    if not certain or _NOT_SECRET.fullmatch(inner):
        return False
    likely = (tight or inner != value) and name.lower().endswith(("token", "pass"))
    return certain == STRONG or likely or _is_guess(inner)


def _is_guess(value: str) -> bool:
    return (
        len(value) >= 6
        and any(character.isdigit() for character in value)
        and any(character.isalpha() for character in value)
    )


def _may_be_password_after_p(value: str) -> bool:
    """Whether the word after `-p` is a password: not a port or a pid, and not a path to make."""
    is_number = value.rstrip(".,;:").isdigit() and len(value) <= 7
    return not (is_number or value.startswith("-") or "/" in value or _NOT_SECRET.fullmatch(value))


_BLANKS, _QUOTE, _PREFIX = r"[ \t]{0,8}", r"\\{0,15}[\"']", r"[rRbBfFuU]{0,2}"
# The name of a value with what stands between them: "name": "value" with any blanks, NAME=value,
# name = "value", name: value, --name value, and '--name', 'value' as a list of words is printed.
# Without quotes a colon needs a blank behind it, or `tokenizer.py:40` would be one. The value may
# be a literal of Python with a prefix: b'value'.
_NAMED = (
    r"(?<![\w.-])(?:([\w.-]{1,200})(?:"
    rf"{_QUOTE}{_BLANKS}[:,]{_BLANKS}(?={_PREFIX}{_QUOTE}|\d)"
    rf"|(?:{_QUOTE})?{_BLANKS}(?:(?:[:!+]?=|=>)(?!=){_BLANKS}|:[ \t]{{1,8}}))"
    rf"|(--?[\w.-]{{1,200}})(?:{_QUOTE})?,?[ \t]{{1,8}}(?!--)"
    r"|(?i:(password|passphrase|secret|token|api key))(?: is| was| of)? (?=[\"']))"
)
_OPENING = rf"{_PREFIX}(\\{{0,15}})([\"'])"
# A value without quotes around it. Not a JSON object or list: the names inside it decide.
_PLAIN = r"(?![{[(][ \t]{0,8}[\\\"'{[]|[{[(]\Z)(?:[^\s,;&)}\]\"'\\]|(?<=\w)[\"'\\](?=\w))+"
_QUOTES = r"(\\{0,64})([\"'\n])"


def _without_named(text: str) -> str:
    """The text without the values of named secrets.

    Only names are searched for, and the value is read only after a secret's name: the value of
    another name may have a secret's name in it. The value is judged by its beginning, so that a
    line of many names does not take long.
    """
    parts, at = [], 0
    while (match := _compiled(_NAMED).search(text, at)) is not None:
        name, end = match[1] or match[2] or match[3], match.end()
        parts.append(text[at:end])
        at = end
        if name != "-p" and not secret_name(name):
            continue
        opened = _compiled(_OPENING).match(text, end)
        begun = text[opened.start(1) if opened else end : _value_end(text, end, opened, 200)]
        if begun and _is_secret_in_text(name, begun, match[0] == f"{name}="):
            parts.append(HIDDEN)
            at = _value_end(text, end, opened, VALUE_CHARACTERS_MAX)
    return "".join((*parts, text[at:]))


def _value_end(text: str, at: int, opened: re.Match[str] | None, most: int) -> int:
    """Where the value that begins at `at` ends, its closing quote included.

    A quote within is escaped by backslashes. In JSON within JSON, so are the quotes around: the one
    that closes has as many backslashes as the one that opens, or pairs of them more.
    """
    if opened is None:
        found = _compiled(_PLAIN).match(text, at, at + most)
        return found.end() if found else at
    slashes, quote, end = len(opened[1]), opened[2], min(opened.end() + most, len(text))
    for match in _compiled(_QUOTES).finditer(text, opened.end(), end):
        if match[2] == "\n":
            return match.start()
        more = len(match[1]) - slashes
        if match[2] != quote or (more > 0 and more % (2 * slashes + 2)):
            continue
        # A line of source has the backslash of its own text twice.
        if more <= 0 or not text[match.end() : match.end() + 1].isalnum():
            return match.end()
    return end


def _after_user(match: re.Match[str]) -> str:
    """`curl -u NAME:PASSWORD`. Of other programs these are numbers (docker) or a host (rsync)."""
    line = match.string[max(match.start() - 160, 0) : match.start()].rpartition("\n")[2]
    calls = re.search(r"\b(?:curl|wget|https?)[\s\"']", line)
    return match[1] + HIDDEN if calls else match[0]


# Twelve or more words of a wallet's recovery phrase: a sentence, a list, in a URL, or in a path.
_PHRASE = r"(?<![A-Za-z0-9])[a-z]{3,8}(?:(?:[\s\0,\"'+_.-]|%20){1,4}[a-z]{3,8}){11,}(?![A-Za-z0-9])"
# A private key whose words are those of a command line.
_KEY_IN_WORDS = r"(?s:-----BEGIN\0[A-Z0-9\0]{0,30}PRIVATE\0KEY.*?(?:\0-----END.*?-----|\Z))"


def _without_phrase(match: re.Match[str]) -> str:
    """Only a run of words that are all of the list is one. A zero separates the words of a command
    line, and stays.
    """
    from ddtop.phrase_words import WORDS

    parts = re.split("([a-z]+)", match[0])
    listed = "".join("x" if word in WORDS else " " for word in parts[1::2])
    for found in reversed([*re.finditer("x{12,}", listed)]):
        hidden = slice(2 * found.start() + 1, 2 * found.end())
        parts[hidden] = [_hidden_words("".join(parts[hidden]))]
    return "".join(parts)


def _hidden_words(text: str) -> str:
    return "\0".join([HIDDEN] * (1 + text.count("\0")))


_Rule = tuple[str, str, "str | Callable[[re.Match[str]], str]"]
"""A text without the first, in lower case, has nothing that the pattern finds."""


_RULES: tuple[_Rule, ...] = (
    (
        # PEM, PGP and SSH2, then PuTTY.
        "key",
        r"(?s)-{4,5} ?BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)? ?----.*?"
        r"(?:END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)? ?-{4,5}|\Z)"
        r"|PuTTY-User-Key-File-\d:.*?(?:Private-MAC:[ \t0-9a-f]{0,200}|\Z)",
        HIDDEN,
    ),
    (
        "secret",
        r"\b(Secret(?:Str|Bytes)\([ \t]{0,8}[bB]?)(?:\"(?:\\.|[^\"\\\n]){1,4000}\""
        r"|'(?:\\.|[^'\\\n]){1,4000}')",
        r"\1" + HIDDEN,
    ),
    # A line of a netrc file, or its lines.
    (
        "password",
        r"\b((?:machine\s{1,8}\S{1,200}|default)(?:\s{1,8}(?:login|account)\s{1,8}\S{1,200})"
        r"{0,2}\s{1,8}password\s{1,8})(?!\(redacted\))\S{1,2000}",
        r"\1" + HIDDEN,
    ),
    (
        "-u",
        r"(?<![\w-])((?:-u|--(?:proxy-)?user)(?:[\"']?,?[ \t]{1,8}|=)"
        r"[\"']?[^\s:\"']{0,200}:)"
        r"(?!\(redacted\))(\"(?=\w)|[^\s\"']){1,2000}",
        _after_user,
    ),
    # The whole line: a scheme stands between the name and the secret.
    (
        "authorization",
        r"(?i)(?:\b|(?<=-H))((?:proxy-)?authorization\\?[\"']?[ \t]{0,8}[:=]"
        r"(?![ \t]{0,8}\(redacted\))[ \t]{0,8})[^\n]+",
        r"\1" + HIDDEN,
    ),
    (
        "bearer",
        r"(?i)\b(bearer)[ \t]{1,8}[A-Za-z0-9._~+/=-]{6,4000}",
        r"\1 " + HIDDEN,
    ),
    (
        "basic",
        r"\b(Basic)[ \t]{1,8}(?=[A-Za-z]{0,80}[0-9+/=])[A-Za-z0-9+/]{8,2000}={0,2}",
        r"\1 " + HIDDEN,
    ),
    # https://user:password@host, also where there is only one of the two, and where the
    # password has an @ or a slash.
    (
        "://",
        r"\b([A-Za-z][A-Za-z0-9+.-]{0,20}://)(?!\(redacted\)@)"
        r"(?:[^\s/@:\"']{0,200}:(?!\d{1,5}/)[^\s\"'@]{1,500}@(?:[^\s/\"'@]{1,200}@)?"
        r"|[^\s/\"']{1,500}@)",
        r"\1" + HIDDEN + "@",
    ),
    (
        "/",
        r"(?i)(hooks\.slack\.com/(?:services|workflows|triggers)/"
        r"|discord(?:app)?\.com/api/webhooks/|api\.telegram\.org/bot|api\.softlayer\.com/soap/v3"
        r"|\.webhook\.office\.com/webhookb2/|outlook\.office(?:365)?\.com/webhook/)"
        r"[\w@%:/.-]{8,500}",
        r"\1" + HIDDEN,
    ),
    (
        "=",
        r"(?i)([?&](?:sig|signature|code|key"
        r"|x-amz-[a-z-]{1,40})=)(?!\(redacted\))[^&\s\"']{1,2000}",
        r"\1" + HIDDEN,
    ),
    ("", _PHRASE, _without_phrase),
    *((mark, f"{start}(?:{'|'.join(_SHAPES)})", HIDDEN) for mark, start in _STARTS),
    # Tokens that have their mark further in: of Entra, Terraform, Mailchimp, Facebook, Telegram.
    *(
        (mark, f"(?:{'|'.join(start for _, start in _STARTS)})(?:{token})", HIDDEN)
        for mark, token in (
            ("q~", r"[\w~.-]{3}\dQ~[\w~.-]{31,34}"),
            (".atlas", r"[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,100}"),
            ("-us", r"[0-9a-f]{32}-us\d{1,2}"),
            ("|", r"\d{15,16}\|[\w-]{27,40}"),
            (":aa", r"(?:bot)?\d{8,10}:AA[\w-]{33}"),
        )
    ),
)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # The cache of `re` is the program's too: it may be full, or emptied.
    return re.compile(pattern)


# A secret without a name or prefix: it is long and, as `_bare` judges, random.
_BARE_RUNS = (
    r"(?<![\w./~$%@:+-])[A-Za-z0-9_+/-]{20,4000}={0,2}(?![\w.])"
    r"|(?<=[:@$%])[A-Za-z0-9_+-]{20,4000}={0,2}(?![\w./])"
)


@functools.cache
def is_on() -> bool:
    """False where this process was started with DDTOP_REDACT=0."""
    return os.environ.get("DDTOP_REDACT", "1") != "0"


def redact(text: str) -> str:
    """The text without everything that looks like a secret."""
    if not is_on():
        return text
    lower = text.lower()
    for needed, pattern, replacement in _RULES:
        if needed in lower:
            text = _compiled(pattern).sub(replacement, text)
    return _compiled(_BARE_RUNS).sub(_bare, _without_named(text))


def redacted_start(text: str, characters: int) -> str:
    """The first so many characters of the redacted text, of which only the first few thousand are
    looked at.

    A word that the first cut goes through is left out: half a secret has no shape.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        text = text[:TEXT_CHARACTERS_MAX].rsplit(None, 1)[0]
        text = text if len(text) < TEXT_CHARACTERS_MAX else text[:characters]
    return redact(text)[:characters]


def redacted_variable(name: str, value: str, characters: int) -> str:
    """The value of an environment variable of this name."""
    if is_on() and _is_secret_value(name, value):
        return HIDDEN
    return redacted_start(value, characters)


def redacted_words(words: list[str], characters: int) -> tuple[str, ...]:
    """A command line, word by word: `--auth=X`, `--auth X`, `-p X`, `-u NAME:X`, what a text of its
    own would hide, and a secret of several words (`Authorization: Bearer X`).
    """
    if not is_on():
        return tuple(word[:characters] for word in words)
    shown: list[str] = []
    before = ""
    for word in words:
        shown.append(_word(before, word, characters))
        scheme = before[-1:] in (":", "=") and re.fullmatch(_SCHEMES, word)
        before = f"{before} {word}" if scheme or word in _BETWEEN else word
    text = _compiled(_PHRASE).sub(_without_phrase, "\0".join(shown))
    text = _compiled(_KEY_IN_WORDS).sub(lambda key: _hidden_words(key[0]), text)
    return tuple(text.split("\0")) if words else ()


_BETWEEN = ("=", ":", ":=", "=>")
_SCHEMES = r"(?i:bearer|basic|token|digest|apikey|key)"
# The end of a word after which the next one is the value of this name, or that of a scheme.
_ANNOUNCES = (
    r"(?:^|[\s;,&\"'])(?:([\w.-]{1,200}) ?(?::|[:+]?=>?)"
    rf"|[\w-]{{0,20}}(?i:authorization) ?[:=] ?{_SCHEMES}|Bearer)\Z"
)
_AFTER_USER = ("-u", "-U", "--user", "--userpwd", "--proxy-user")


def _word(before: str, word: str, characters: int) -> str:
    name, equals, value = word.partition("=")
    plain = re.fullmatch(r"[+~-]*[\w.-]{1,200}", name) is not None
    if (
        equals
        and plain
        and (
            _is_secret_value(name, value)
            if name.startswith("-")
            else _is_secret_in_text(name, value, tight=True)
        )
    ):
        return f"{name[:characters]}={HIDDEN}"
    if _is_secret_after(before, word):
        return HIDDEN
    if word.startswith("-p") and _is_guess(word[2:]) and not re.search(r"[=/.]", word):
        return "-p" + HIDDEN
    if (before in _AFTER_USER or word.startswith("-u")) and re.search(r":(?!\d*$|//)", word):
        return word.partition(":")[0][:characters] + ":" + HIDDEN
    return redacted_start(word, characters)


def _is_secret_after(before: str, word: str) -> bool:
    """Whether the words before make this one a secret."""
    if before == "-p":
        return _may_be_password_after_p(word)
    if word.startswith("--"):
        return False
    announced = _compiled(_ANNOUNCES).search(before)
    if announced is None or word.startswith("-"):
        return re.fullmatch(r"-[^\s=]+", before) is not None and _is_secret_value(before, word)
    if word in _BETWEEN or re.fullmatch(_SCHEMES, word):
        return False
    return announced[1] is None or _is_secret_in_text(announced[1], word, tight=True)


known = functools.lru_cache(2048)(redact)


def redact_in(values: Any) -> Any:
    """These lists and dictionaries with each text in them redacted.

    Texts that come again, as names of functions and files do, cost next to nothing.
    """
    if type(values) is dict:
        return dict(zip(values, redact_in([*values.values()]), strict=True))
    return [
        known(value)
        if type(value) is str
        else redact_in(value)
        if type(value) is list or type(value) is dict
        else value
        for value in values
    ]
