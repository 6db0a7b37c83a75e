"""The last look over a text that will be read by strangers: what looks like a secret goes, whoever wrote it there.

Agents have redacted environment and command line by their names already; but an exception's text, a source line or a path may hold
a secret too. Too much is taken rather than too little.
"""

from __future__ import annotations

import re
from collections.abc import Callable

HIDDEN = "(redacted)"
_NAMES = re.compile(r"key|token|secret|passw|passphrase|credential|auth|pwd", re.IGNORECASE)


def _by_name(match: re.Match[str]) -> str:
    """Of a name and its value, the value goes if the name sounds secret."""
    return f"{match[1]}{match[2]}{HIDDEN}" if _NAMES.search(match[1]) else match[0]


_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        HIDDEN,
    ),
    # The whole line: a scheme stands between the name and the secret.
    (re.compile(r"(?i)(authorization[\"']?[ \t]*[:=][ \t]*)[^\n]+"), r"\1" + HIDDEN),
    (re.compile(r"(?i)\b(bearer)[ \t]+[A-Za-z0-9._~+/=-]{6,}"), r"\1 " + HIDDEN),
    # https://user:password@host, also where there is only one of the two.
    (re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{0,20}://)[^\s/@\"']{1,500}@"), r"\1" + HIDDEN + "@"),
    (re.compile(r"(?i)([?&][\w-]{0,40}(?:sig|signature|amz)[\w-]{0,40}=)[^&\s\"']+"), r"\1" + HIDDEN),
    (
        re.compile(
            r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
            r"|sk-[A-Za-z0-9_-]{16,}|xox[a-z]-[\w-]{10,}|AIza[\w-]{30,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}"
            r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,})"
        ),
        HIDDEN,
    ),
    # NAME=value, name = "value", {"name": "value"}; a colon needs a blank behind it, or `tokenizer.py:40` would be one.
    (
        re.compile(
            r"(?<![\w.-])([\w.-]{1,200})([\"']?[ \t]{0,8}(?:=(?!=)[ \t]{0,8}|:[ \t]{1,8}))"
            r"(?!\(redacted\))(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;)}\]]+)"
        ),
        _by_name,
    ),
    # --token value
    (re.compile(r"(?<![\w.-])(--?[\w.-]{1,200})([ \t]{1,8})(?!-|\(redacted\))\S+"), _by_name),
)


def redacted(text: str, home: str | None = None) -> str:
    """The text without what looks like a secret; `home`, the user's folder, becomes `~`."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    if home and len(home.rstrip("/")) > 1:
        text = re.sub(re.escape(home.rstrip("/")) + r"(?![\w.-])", "~", text)
    return text
