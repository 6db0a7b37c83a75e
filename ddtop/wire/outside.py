"""What can be known from outside about a rank without an agent: where its main thread is."""

from __future__ import annotations

import msgspec

COLLECTIVE, P2P, INIT, UNCLEAR = "collective", "p2p", "init", "unclear"
KINDS = (COLLECTIVE, P2P, INIT, UNCLEAR)
"""Of `OutsideLook.kind`. `unclear`: a call into C that may wait for other ranks, such as a
synchronization with a GPU."""
RUN = "outside"
"""The run of ranks that are read from outside, in their Hello."""


class OutsideLook(msgspec.Struct, frozen=True, array_like=True):
    """The main thread of a rank, read from outside: by its frames and by /proc.

    `kind`: one of KINDS, None if the thread is in no communication call; `call` is that call
    ("all_reduce"). `since_unix_ns`: since when the thread is known to be in this place without a
    break. `asleep`: it has not run since then; False where it runs at one line, as in a library
    that spins. `communicated_unix_ns`: when it was last seen to have left a call for other ranks.
    `apart_looks`: how many looks in a row have found it in no such call. `quiet_since_unix_ns`:
    since when the threads that run gloo's collectives have run none, as far as was looked; None
    without such threads.

    Of the last looks, a tenth of a second apart or more: `looks`, over `looks_s` seconds; of these
    `call_looks` found it in a call for other ranks and `wait_looks` in a collective to which all
    ranks contribute.
    `one_wait_looks`: how many of these belong to one and the same wait, the longest.

    `arguments`: the call with the arguments that say whom it is with, `recv(src=2)`; None where
    nobody asked for variables (`--locals`).
    """

    kind: str | None = None
    call: str | None = None
    since_unix_ns: int | None = None
    asleep: bool = False
    communicated_unix_ns: int | None = None
    apart_looks: int = 0
    quiet_since_unix_ns: int | None = None
    looks: int = 0
    looks_s: float = 0.0
    call_looks: int = 0
    wait_looks: int = 0
    one_wait_looks: int = 0
    arguments: str | None = None

    @property
    def waits(self) -> bool:
        """It is in a call for other ranks, after the start."""
        return self.kind in (COLLECTIVE, P2P)
