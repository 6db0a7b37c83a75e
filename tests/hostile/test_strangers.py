"""Clients without this user's key: refused, counted, and reported to the user's own viewers."""

import contextlib
import random
import socket
import threading

import pytest
import zmq

from ddtop import registry
from ddtop.link.keys import CONTROLLER, SERVER, VIEWER, derive
from ddtop.wire.records import Command
from tests.hostile.scene import DEADLINE_S, GREETING

NOISE = random.Random(8).randbytes(5000)
HELLO_HEAD = b"\x04\xc8\x05HELLO"
SAID = {  # the bytes that strangers send
    "http": b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + NOISE[:200],
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "zeros": b"\0" * 1000,
    "ones": b"\xff" * 1000,
    "noise": NOISE,
    "zmtp 1": b"\x01\x00\x05\x00hello",
    "zmtp 2": b"\xff" + b"\0" * 8 + b"\x7f\x01\x05\x00\x00",
    "zmtp of the year 2099": GREETING[:10] + b"\x63" + GREETING[11:],
    "an unknown mechanism": GREETING.replace(b"CURVE", b"MAGIC"),
    "curve, then noise": GREETING + NOISE[:400],
    "a hello of noise": GREETING + HELLO_HEAD + NOISE[:194],
    "a hello that is too short": GREETING + b"\x04\x06\x05HELLO",
    "a command of 2^63 bytes": GREETING + b"\x06" + b"\x7f" + b"\xff" * 7 + NOISE[:100],
    "a message before the handshake": GREETING + b"\x00\x05hello",
    "ready without a hello": GREETING + b"\x04\x06\x05READY",
    "nothing": b"",
    "half a greeting": GREETING[:30],
}


def test_a_client_that_does_not_speak_curve_is_refused_and_counted(scene):
    """The attacks one after the other, and all at once."""
    before = scene.refused
    for said in SAID.values():
        scene.stranger(said).close()
    held = [scene.stranger(said) for said in SAID.values()]
    for stranger in held:
        stranger.close()

    assert scene.host(
        lambda state: state.refused >= before + 2 * len(SAID)
    ).refused == before + 2 * len(SAID)
    scene.serves()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"plain_username": b"root", "plain_password": b"x"},
        {
            "curve_serverkey": b"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7",
            **dict.fromkeys(("curve_publickey", "curve_secretkey")),
        },
    ],
    ids=["no key", "a password", "another user's server"],
)
def test_zeromq_without_the_users_key_is_refused_and_counted(scene, options):
    if "curve_serverkey" in options:
        options["curve_publickey"], options["curve_secretkey"] = zmq.curve_keypair()
    before = scene.refused
    stranger = scene.dealer(**options)

    scene.host(lambda state: state.refused > before)
    assert not stranger.poll(0)
    scene.serves()


def stranger_with(scene, **keys):
    """A client that knows the relay's public key, which is no secret: every viewer has it."""
    server = derive(registry.secret(), SERVER).public
    return scene.dealer(curve_serverkey=server, **keys)


@pytest.mark.parametrize("role", [VIEWER, CONTROLLER, SERVER, None])
def test_a_client_that_claims_our_public_key_or_brings_its_own_is_refused(scene, role):
    """Public keys are sent when a viewer connects. The handshake proves that the client has the
    private half; ZAP, that the pair is one of ours.
    """
    before = scene.refused
    public, private = zmq.curve_keypair()
    if role is not None:
        public = derive(registry.secret(), role).public
    stranger = stranger_with(scene, curve_publickey=public, curve_secretkey=private)

    scene.host(lambda state: state.refused > before)
    assert not stranger.poll(0)
    scene.serves()


class Recorder:
    """A man in the middle, who keeps what is sent to the relay."""

    def __init__(self, port):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.heard = b""
        self._target = port
        self._ends = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        near, _ = self._listening.accept()
        far = socket.create_connection(("127.0.0.1", self._target))
        self._ends += [near, far]
        back = threading.Thread(target=self._copy, args=(far, near, False))
        back.start()
        self._copy(near, far, True)
        back.join()

    def _copy(self, source, target, keep):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.heard += data if keep else b""
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listening.close()
        self._thread.join(DEADLINE_S)
        for end in self._ends:
            end.close()


@pytest.mark.parametrize("cut", [None, 64 + 202, 400])
def test_a_replayed_handshake_opens_nothing(scene, cut):
    """Each session has new keys, so a message that was sealed for an old session cannot be opened
    in a new one.
    """
    before = scene.host(lambda _: True)
    recorder, port = Recorder(scene.port), scene.port
    scene.port = recorder.port
    viewer = scene.joined(controller=True)
    scene.port = port
    viewer.close()
    recorder.close()
    with scene.stranger(recorder.heard[:cut]) as stranger:
        if cut is not None:
            stranger.shutdown(socket.SHUT_WR)
        state = scene.host(lambda state: state.refused > before.refused)

    assert len(recorder.heard) > 400
    assert (state.refused, state.garbled) == (before.refused + 1, before.garbled)
    scene.serves()


def test_a_viewer_of_another_user_is_refused(scene):
    """The stranger finds the port in /proc/net/tcp, and has a ddtop and a key of his own."""
    before = scene.refused
    viewer = scene.another_viewer(b"0123456789abcdef", controller=True)
    scene.order(viewer, Command("join"))
    scene.host(lambda state: state.refused > before)

    assert list(viewer.receive(0.05)) == []
    scene.serves()
