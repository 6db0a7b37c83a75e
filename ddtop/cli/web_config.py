"""The web config of the exporter: TLS and basic auth, in the format of Prometheus' own exporters.

Source: https://prometheus.io/docs/prometheus/latest/configuration/https/, of which it knows
`tls_server_config` (cert_file, key_file, client_ca_file, client_auth_type, min_version) and
`basic_auth_users` (bcrypt hashes).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddtop.cli.errors import USAGE, CommandError

_TLS_KEYS = {"cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version"}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENTS = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
BYTES_MAX = 1 << 20
_PROVEN_MAX = 64


@dataclass
class WebConfig:
    """Who may read the series, and how. `tls`: None for plain HTTP. `users`: name to bcrypt hash;
    none: everybody may.
    """

    tls: ssl.SSLContext | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)
    _salt: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    _proven: set[bytes] = field(default_factory=set)

    def admits(self, authorization: str) -> bool:
        """Whether the header `Authorization` names one of the users with the right password.

        bcrypt takes a tenth of a second on purpose. So correct passwords are remembered, hashed
        with a salt of this process, as Prometheus' exporters do.
        """
        if not self.users:
            return True
        kind, _, encoded = authorization.partition(" ")
        if kind.lower() != "basic":
            return False
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return False
        kept = hashlib.sha256(self._salt + name + b":" + password).digest()
        if any(hmac.compare_digest(kept, one) for one in tuple(self._proven)):
            return True
        known = self.users.get(name.decode("utf-8", "replace"))
        # An unknown name takes as long as a known one.
        proven = _matches(password, known or next(iter(self.users.values()))) and known is not None
        if proven and colon:
            if len(self._proven) >= _PROVEN_MAX:
                self._proven.clear()
            self._proven.add(kept)
        return proven and bool(colon)


def _matches(password: bytes, hashed: bytes) -> bool:
    import bcrypt

    # bcrypt reads at most 72 bytes, and refuses longer passwords.
    return len(password) <= 72 and bcrypt.checkpw(password, hashed)


def web_config(path: str | None) -> WebConfig:
    """Read the file; None: plain HTTP for everybody.

    Raises:
        CommandError: 2, it cannot be read, or it is no web config.
    """
    if path is None:
        return WebConfig()
    found = _parsed(path)
    unknown = sorted(set(found) - {"tls_server_config", "basic_auth_users"})
    if unknown:
        raise _broken(path, f"{unknown[0]} is not known here")
    tls = found.get("tls_server_config")
    config = WebConfig(
        _tls(path, tls) if tls is not None else None,
        _users(path, found.get("basic_auth_users") or {}),
    )
    if config.tls is None and not config.users:
        raise _broken(path, "it has neither tls_server_config nor basic_auth_users")
    return config


def _broken(path: str, why: str) -> CommandError:
    return CommandError(f"ddtop: --web-config {path}: {why}", USAGE)


def _parsed(path: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise CommandError(
            "ddtop: --web-config needs PyYAML and bcrypt: pip install 'ddtop[exporter]'", USAGE
        ) from None
    try:
        with open(path, "rb") as file:
            data = file.read(BYTES_MAX + 1)
        found = yaml.safe_load(data[:BYTES_MAX])
    except OSError as error:
        raise _broken(path, error.strerror or str(error)) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _broken(path, f"it is no YAML: {first}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise _broken(path, "it is no mapping of names to values")
    return found


def _tls(path: str, found: Any) -> ssl.SSLContext:
    if not isinstance(found, dict):
        raise _broken(path, "tls_server_config is no mapping")
    unknown = sorted(str(key) for key in set(found) - _TLS_KEYS)
    if unknown:
        raise _broken(path, f"tls_server_config.{unknown[0]} is not known here")
    if not found.get("cert_file") or not found.get("key_file"):
        raise _broken(path, "tls_server_config needs cert_file and key_file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    version = str(found.get("min_version", "TLS12"))
    kind = str(found.get("client_auth_type", "NoClientCert"))
    if version not in _VERSIONS:
        raise _broken(path, f"tls_server_config.min_version is one of {', '.join(_VERSIONS)}")
    if kind not in _CLIENTS:
        raise _broken(path, f"tls_server_config.client_auth_type is one of {', '.join(_CLIENTS)}")
    if _CLIENTS[kind] != ssl.CERT_NONE and not found.get("client_ca_file"):
        raise _broken(path, f"client_auth_type {kind} needs client_ca_file")
    context.minimum_version = _VERSIONS[version]
    beside = Path(path).parent
    names = {key: str(beside / os.path.expanduser(str(found[key]))) for key in found}
    try:
        context.load_cert_chain(names["cert_file"], names["key_file"])
        if found.get("client_ca_file"):
            context.load_verify_locations(names["client_ca_file"])
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or getattr(error, "reason", None) or str(error)
        raise _broken(path, f"its certificate or key cannot be used: {why}") from None
    context.verify_mode = _CLIENTS[kind]
    return context


def _users(path: str, found: Any) -> dict[str, bytes]:
    if not isinstance(found, dict):
        raise _broken(path, "basic_auth_users is no mapping of names to bcrypt hashes")
    if not found:
        return {}
    try:
        import bcrypt
    except ImportError:
        raise CommandError(
            "ddtop: basic_auth_users needs bcrypt: pip install 'ddtop[exporter]'", USAGE
        ) from None
    users = {str(name): str(hashed).encode() for name, hashed in found.items()}
    for name, hashed in users.items():
        try:
            bcrypt.checkpw(b"", hashed)
        except ValueError:
            raise _broken(
                path, f"the password of {name} is no bcrypt hash (htpasswd -nBC 10 '' makes one)"
            ) from None
    return users
