"""The module that ddtop.pth imports when DDTOP is set. It decides what this process is.

If the process is a rank or may become one, it installs the import hook. No thread, no socket and no
relay is started before that. An error here must not be visible: the line runs in every Python of
the user's environment.
"""

from __future__ import annotations

import os
import sys

from ddtop.agent import identity, own_imports


def enter() -> None:
    """Look at this process once and start what it needs."""
    argv = sys.orig_argv
    who = identity.identify(os.environ, argv, os.getpid())
    if who.role == identity.IGNORED or not own_imports.is_main_interpreter():
        return
    if who.role == identity.LAUNCHER:
        from ddtop.agent.run_name import launcher_tree

        # A launcher always starts a new run, even inside another watched process.
        os.environ[identity.TREE] = launcher_tree(who.script, os.getpid())
        return
    if who.role == identity.CANDIDATE and who.script != "python":
        # The first watched program of a process tree names the job of the ranks that it may start.
        os.environ.setdefault(identity.TREE, f"{who.script}-{os.getpid()}|")
    from ddtop.agent import import_hooks

    import_hooks.install()
    if who.role == identity.RANK:
        try:
            own_imports.check(argv)
        except own_imports.ShadowedError as error:
            if (
                who.rank == 0
                and os.environ.get("DDTOP_QUIET", "0") in ("", "0")
                and sys.stderr is not None
            ):
                sys.stderr.write(f"ddtop is off in this job: {error}\n")
            return
        from ddtop.agent import claim

        claim.from_environment(who)


enter()
