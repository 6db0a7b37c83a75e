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
    r"secret|passw|passphrase|passcode|credential|pwd|(?:api|access|private|signing|encryption"
    r"|account|license)_?key"
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
_WORD = re.compile(r"[a-z]{4,}")
_CHANGE = re.compile(r"[a-z]+|[A-Z]+|[0-9]+")
CHANGES_RATIO, WORDS_RATIO = 0.35, 0.4
"""Limits for random text. Among random letters and digits, six in ten neighbours are of different
kinds; in CamelCase words three. And fewer than one letter in ten is in a run of four or more
lower-case letters."""

_SHAPES = (
    r"A(?:KIA|SIA|BIA|CCA)[0-9A-Z]{16}|AIza[\w-]{30,100}|GOCSPX-[\w-]{20,100}"
    r"|ya29\.[\w-]{20,2000}|1//0[\w-]{20,200}"
    r"|(?:hf|api_org)_[A-Za-z0-9]{16,100}|gh[pousr]_[A-Za-z0-9]{16,300}|github_pat_\w{16,300}"
    r"|gl(?:pat|ptt|dt|rt|cbt|ft)-[\w.-]{16,300}"
    r"|(?:sk|pk|rk)[-_](?:live_|test_|proj-|ant-|or-)?[A-Za-z0-9_-]{16,300}"
    r"|xox[a-z]-[\w-]{10,300}|xapp-[\w-]{10,300}"
    r"|dckr_[op]at_[\w-]{20,100}|(?:rpa|figd|glsa|pscale_tkn|xai|fw|jina|e2b|lsv2_[ps]t|tgp_v1)_"
    r"(?=[\w-]{0,300}[0-9])[\w-]{20,300}|ABSK[A-Za-z0-9+/]{80,300}={0,2}"
    r"|(?:npm|nvapi|gsk|pplx|lin_api|ntn|r8|dop_v1|doo_v1|shpat|shpss|rubygems|hvs|hvb|wandb_v1"
    r"|tfp|glc|sbp|PMAK|key|whsec|pul|sntrys)"
    r"[-_.](?=[\w-]{0,300}[0-9])[A-Za-z0-9_=-]{24,300}|pypi-[\w-]{40,300}"
    r"|dapi[0-9a-f]{32}(?:-\d)?|SG\.[\w-]{16,100}\.[\w-]{16,100}"
    r"|sq0(?:atp|csp)-[\w-]{20,100}|AGE-SECRET-KEY-1[0-9A-Z]{40,80}|ATATT3[\w=-]{20,300}"
    r"|[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,100}"
    r"|eyJ[\w-]{8,4000}\.[\w-]{8,4000}\.[\w-]{4,2000}|(?:bot)?\d{8,10}:AA[\w-]{33}"
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


def _without_named(text: str) -> str:
    """The text without the values of named secrets.

    Only names are searched for, and the value is read only after a secret's name: the value of
    another name may have a secret's name in it. The value is judged by its beginning, so that a
    line of many names does not take long.
    """
    head, opening, plain = _name_patterns()
    parts, at = [], 0
    while (match := head.search(text, at)) is not None:
        name, end = match[1] or match[2] or match[3], match.end()
        parts.append(text[at:end])
        at = end
        if name != "-p" and not secret_name(name):
            continue
        opened = opening.match(text, end)
        begun = text[opened.start(1) if opened else end : _value_end(text, end, opened, plain, 200)]
        if begun and _is_secret_in_text(name, begun, match[0] == f"{name}="):
            parts.append(HIDDEN)
            at = _value_end(text, end, opened, plain, VALUE_CHARACTERS_MAX)
    return "".join((*parts, text[at:]))


def _value_end(
    text: str, at: int, opened: re.Match[str] | None, plain: re.Pattern[str], most: int
) -> int:
    """Where the value that begins at `at` ends, its closing quote included.

    A quote within is escaped by backslashes. In JSON within JSON, so are the quotes around: the one
    that closes has as many backslashes as the one that opens, or pairs of them more.
    """
    if opened is None:
        found = plain.match(text, at, at + most)
        return found.end() if found else at
    slashes, quote, end = len(opened[1]), opened[2], min(opened.end() + most, len(text))
    for match in _quotes().finditer(text, opened.end(), end):
        if match[2] == "\n":
            return match.start()
        more = len(match[1]) - slashes
        if match[2] != quote or (more > 0 and more % (2 * slashes + 2)):
            continue
        # A line of source has the backslash of its own text twice.
        if more <= 0 or not text[match.end() : match.end() + 1].isalnum():
            return match.end()
    return end


@functools.cache
def _quotes() -> re.Pattern[str]:
    return re.compile(r"(\\{0,64})([\"'\n])")


@functools.cache
def _name_patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """The name of a value with what stands between them, the quote that opens the value, and a
    value without quotes around it.

    "name": "value" with any blanks, NAME=value, name = "value", name: value, --name value, and
    '--name', 'value' as a list of words is printed. Without quotes a colon needs a blank behind it,
    or `tokenizer.py:40` would be one. The value may be a literal of Python with a prefix: b'value'.
    """
    name, option, blanks = r"[\w.-]{1,200}", r"--?[\w.-]{1,200}", r"[ \t]{0,8}"
    quote, prefix = r"\\{0,15}[\"']", r"[rRbBfFuU]{0,2}"
    spoken = r"(?i:password|passphrase|secret|token|api key)"
    quoted = rf"{quote}{blanks}[:,]{blanks}(?={prefix}{quote}|\d)"
    assigned = rf"(?:{quote})?{blanks}(?:(?:[:!+]?=|=>)(?!=){blanks}|:[ \t]{{1,8}})"
    head = re.compile(
        rf"(?<![\w.-])(?:({name})(?:{quoted}|{assigned})|({option})(?:{quote})?,?[ \t]{{1,8}}(?!--)"
        rf"|({spoken})(?: is| was| of)? (?=[\"']))"
    )
    # Not a JSON object or list: the names inside it decide.
    plain = r"(?![{[(][ \t]{0,8}[\\\"'{[]|[{[(]\Z)(?:[^\s,;&)}\]\"'\\]|(?<=\w)[\"'\\](?=\w))+"
    return head, re.compile(rf"{prefix}(\\{{0,15}})([\"'])"), re.compile(plain)


def _after_user(match: re.Match[str]) -> str:
    """`curl -u NAME:PASSWORD`. Of other programs these are numbers (docker) or a host (rsync)."""
    line = match.string[max(match.start() - 160, 0) : match.start()].rpartition("\n")[2]
    calls = re.search(r"\b(?:curl|wget|https?)[\s\"']", line)
    return match[1] + HIDDEN if calls else match[0]


_Rule = tuple["re.Pattern[str]", "str | Callable[[re.Match[str]], str]"]


@functools.cache
def _shaped_rules() -> tuple[_Rule, ...]:
    compiled = re.compile
    return (
        (
            # PEM, PGP and SSH2, then PuTTY.
            compiled(
                r"-{4,5} ?BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)? ?----.*?"
                r"(?:END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)? ?-{4,5}|\Z)"
                r"|PuTTY-User-Key-File-\d:.*?(?:Private-MAC:[ \t0-9a-f]{0,200}|\Z)",
                re.DOTALL,
            ),
            HIDDEN,
        ),
        (
            compiled(
                r"\b(Secret(?:Str|Bytes)\([ \t]{0,8}[bB]?)(?:\"(?:\\.|[^\"\\\n]){1,4000}\""
                r"|'(?:\\.|[^'\\\n]){1,4000}')"
            ),
            r"\1" + HIDDEN,
        ),
        # A line of a netrc file, or its lines.
        (
            compiled(
                r"\b((?:machine\s{1,8}\S{1,200}|default)(?:\s{1,8}(?:login|account)\s{1,8}\S{1,200})"
                r"{0,2}\s{1,8}password\s{1,8})(?!\(redacted\))\S{1,2000}"
            ),
            r"\1" + HIDDEN,
        ),
        (
            compiled(
                r"(?<![\w-])((?:-u|--(?:proxy-)?user)(?:[\"']?,?[ \t]{1,8}|=)"
                r"[\"']?[^\s:\"']{0,200}:)"
                r"(?!\(redacted\))(\"(?=\w)|[^\s\"']){1,2000}"
            ),
            _after_user,
        ),
        # The whole line: a scheme stands between the name and the secret.
        (
            compiled(
                r"(?i)\b((?:proxy-)?authorization\\?[\"']?[ \t]{0,8}[:=](?![ \t]{0,8}\(redacted\))["
                r" \t]{0,8})[^\n]+"
            ),
            r"\1" + HIDDEN,
        ),
        (compiled(r"(?i)\b(bearer)[ \t]{1,8}[A-Za-z0-9._~+/=-]{6,4000}"), r"\1 " + HIDDEN),
        (
            compiled(r"\b(Basic)[ \t]{1,8}(?=[A-Za-z]{0,80}[0-9+/=])[A-Za-z0-9+/]{8,2000}={0,2}"),
            r"\1 " + HIDDEN,
        ),
        # https://user:password@host, also where there is only one of the two, and where the
        # password has an @ or a slash.
        (
            compiled(
                r"\b([A-Za-z][A-Za-z0-9+.-]{0,20}://)(?!\(redacted\)@)"
                r"(?:[^\s/@:\"']{0,200}:(?!\d{1,5}/)[^\s\"'@]{1,500}@(?:[^\s/\"'@]{1,200}@)?"
                r"|[^\s/\"']{1,500}@)"
            ),
            r"\1" + HIDDEN + "@",
        ),
        (
            compiled(
                r"(?i)(hooks\.slack\.com/(?:services|workflows|triggers)/"
                r"|discord(?:app)?\.com/api/webhooks/|api\.telegram\.org/bot"
                r"|\.webhook\.office\.com/webhookb2/|outlook\.office(?:365)?\.com/webhook/)"
                r"[\w@%:/.-]{8,500}"
            ),
            r"\1" + HIDDEN,
        ),
        (
            compiled(
                r"(?i)([?&](?:sig|signature|code|key"
                r"|x-amz-[a-z-]{1,40})=)(?!\(redacted\))[^&\s\"']{1,2000}"
            ),
            r"\1" + HIDDEN,
        ),
        (compiled(r"(?<![A-Za-z0-9_])(?:" + _SHAPES + ")"), HIDDEN),
    )


@functools.cache
def _bare_runs() -> re.Pattern[str]:
    """A secret without a name or prefix: it is long and, as `_bare` judges, random."""
    return re.compile(
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
    for pattern, replacement in _shaped_rules():
        text = pattern.sub(replacement, text)
    return _bare_runs().sub(_bare, _without_named(text))


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
    """A command line, word by word: `--auth=X`, `--auth X`, `-p X`, `-u NAME:X`, and what a text
    of its own would hide.
    """
    shown: list[str] = []
    before = ""
    for word in words:
        shown.append(_word(before, word, characters) if is_on() else word[:characters])
        before = word
    return tuple(shown)


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
    if before.startswith("-") and "=" not in before:
        if before == "-p":
            if _may_be_password_after_p(word):
                return HIDDEN
        elif before in ("-u", "--user", "--userpwd") and re.search(r":(?!\d*$)", word):
            return word.partition(":")[0][:characters] + ":" + HIDDEN
        elif _is_secret_value(before, word) and not word.startswith("--"):
            return HIDDEN
    if word.startswith("-p") and _is_guess(word[2:]) and not re.search(r"[=/.]", word):
        return "-p" + HIDDEN
    return redacted_start(word, characters)
