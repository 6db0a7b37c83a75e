"""A service of somebody else on the port where the ranks want to meet: it takes connections and
says nothing.

python occupant.py DESCRIPTOR
"""

from __future__ import annotations

import socket
import sys


def main() -> None:
    """Serve the listening socket of that descriptor."""
    connections = []
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        while True:
            connections.append(listener.accept()[0])


if __name__ == "__main__":
    main()
