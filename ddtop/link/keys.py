"""Three CURVE key pairs from one secret: a person with the secret has all three."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

import zmq
from zmq.utils import z85

SERVER, VIEWER, CONTROLLER = "server", "viewer", "controller"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, both halves in Z85 (40 characters)."""

    public: bytes
    secret: bytes


def derive(secret: bytes, role: str) -> KeyPair:
    """The key pair of a role; the same on every host that has the same secret."""
    private = z85.encode(hmac.new(secret, f"ddtop/1/{role}".encode(), hashlib.sha256).digest())
    return KeyPair(zmq.curve_public(private), private)
