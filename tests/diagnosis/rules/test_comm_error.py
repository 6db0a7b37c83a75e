"""The backend fails and no rank ended before: who reports the error is not blamed for it."""

from ddtop.wire.records import GroupProgress
from tests.jobs import trained

KIND = "comm-error"


def brief(finding):
    return finding.severity, finding.kind, finding.ranks, finding.victims


# -- NCCL reports the error before it ends the rank


def test_what_nccl_says_of_its_connections_stands_before_it_ends_the_rank(monkeypatch):
    """The watchdog has seen the error and sleeps a minute before it aborts."""
    job = trained(3)
    job.others_wait()
    rank = job.ranks[0]
    whole = rank.state

    def state():
        found = whole()
        groups = tuple(
            GroupProgress(
                *(getattr(one, name) for name in one.__struct_fields__[:6]), "REMOTE_ERROR"
            )
            for one in found.groups
        )
        return type(found)(
            *(
                groups if name == "groups" else getattr(found, name)
                for name in found.__struct_fields__
            )
        )

    monkeypatch.setattr(rank, "state", state)
    finding = job.passes(12).finding()

    assert job.ever() == [("critical", KIND, ())]
    assert brief(finding) == ("critical", KIND, (), (0,))
    assert "its backend reports REMOTE_ERROR" in finding.summary
