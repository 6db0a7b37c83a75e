"""A webhook's server that never ends its answer: the next event goes on, and nothing is kept."""

import contextlib
import os
import socket
import ssl
import threading

import pytest

from ddtop.cli.actions import Webhook
from tests.ports import certificate
from tests.waiting import until

DRIPS = {
    "before the status": ("http", b""),
    "in the status": ("http", b"HTTP/1.1 2"),
    "in the headers": ("http", b"HTTP/1.1 200 OK\r\nX: "),
    "in the text": ("http", b"HTTP/1.1 503 no\r\nContent-Length: 100000\r\n\r\n"),
    "in the headers, with TLS": ("https", b"HTTP/1.1 200 OK\r\nX: "),
}


@pytest.fixture
def tls(tmp_path, monkeypatch):
    """The TLS of a server whose certificate is trusted here."""
    certificate(tmp_path, "here")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "here.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "here.pem", tmp_path / "here.key")
    return context


@pytest.fixture(params=[0.0, 0.3], ids=["at once", "after the deadline"])
def connects(request, monkeypatch):
    """How late the connection is made: a name may have several addresses."""
    make = socket.create_connection

    def late(*of, **more):
        threading.Event().wait(request.param)
        return make(*of, **more)

    monkeypatch.setattr(socket, "create_connection", late)


@pytest.mark.parametrize(("scheme", "head"), DRIPS.values(), ids=DRIPS)
def test_a_server_that_never_ends_its_answer_keeps_no_thread_and_no_descriptor(
    scheme, head, tls, connects
):
    over, taken, dripping = threading.Event(), [], []

    def drip(connection):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(connection)
            if scheme == "https":
                connection = stack.enter_context(tls.wrap_socket(connection, server_side=True))
            connection.sendall(head)
            while not over.wait(0.02):
                connection.sendall(b"x")

    def accept(listener):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                taken.append(connection)
                dripping.append(threading.Thread(target=drip, args=[connection]))
                dripping[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, args=[listener])
        accepting.start()
        threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))

        said = []
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/hook"
        webhook = Webhook(url, None, said.append, backoff_s=0.01, try_s=0.2)
        webhook.put({"event": "appeared"})
        webhook.leave()

        assert "5 times" in said[0]
        until(lambda: len(taken) == 5)
        # A server notices the end of a connection when it sends: then only the listener is left.
        until(lambda: not any(thread.is_alive() for thread in dripping))
        until(lambda: threading.active_count() == threads)
        assert len(os.listdir("/proc/self/fd")) == descriptors
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()
