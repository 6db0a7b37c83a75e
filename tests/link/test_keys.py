"""Three key pairs are derived from one secret."""

import pytest
import zmq

from ddtop.link.keys import CONTROLLER, SERVER, VIEWER, derive

ROLES = (SERVER, VIEWER, CONTROLLER)


def test_the_same_secret_gives_the_same_keys_on_every_host():
    assert derive(b"secret", VIEWER) == derive(b"secret", VIEWER)


def test_each_role_and_each_secret_has_keys_of_its_own():
    """A holder of the viewer's key must not be able to act as the relay."""
    keys = {derive(secret, role).secret for secret in (b"a", b"b") for role in ROLES}

    assert len(keys) == 6


@pytest.mark.parametrize("role", ROLES)
def test_a_key_is_a_curve_key(role):
    pair = derive(b"secret", role)

    assert (len(pair.public), len(pair.secret)) == (40, 40)
    assert zmq.curve_public(pair.secret) == pair.public
