"""Which files of ended jobs are removed, and which never are."""

import os

from ddtop import registry
from tests.entries import NOW, S, entry


def test_only_the_oldest_ended_jobs_are_pruned(home):
    for number in range(registry.ENDED_JOBS_KEPT + 3):
        registry.write_entry(
            entry(f"job{number}", started_unix_ns=number, ended_unix_ns=NOW, heartbeat_unix_ns=0)
        )
    registry.write_entry(entry("alive", started_unix_ns=0))
    last_state = registry.last_state_path("job0", "r1", "0" * 12)
    last_state.write_bytes(b"")

    registry.prune_ended(NOW)

    left = {one.job for one in registry.read_entries()}
    assert len(left) == registry.ENDED_JOBS_KEPT + 1
    assert "alive" in left
    assert not {"job0", "job1", "job2"} & left
    assert not last_state.exists()


def test_the_hosts_of_one_job_do_not_push_out_the_jobs_before_it(home):
    """A folder that all hosts share has a job file of each host. A job on a hundred hosts counts as
    one.
    """
    for number in range(5):
        registry.write_entry(
            entry(f"before{number}", ended_unix_ns=NOW - 60 * S, heartbeat_unix_ns=0)
        )
    registry.write_entry(
        entry("wide", "r0", role="hub", ended_unix_ns=NOW - 9 * S, heartbeat_unix_ns=0)
    )
    for number in range(2 * registry.ENDED_JOBS_KEPT):
        told = {
            "role": "leaf",
            "part_of": "r0",
            "ended_unix_ns": NOW - 10 * S,
            "heartbeat_unix_ns": 0,
        }
        registry.write_entry(entry("wide", "r1", sender=f"{number:012}", **told))

    registry.prune_ended(NOW)

    left = registry.read_entries()
    assert {one.job for one in left} == {"wide", *(f"before{number}" for number in range(5))}
    assert sum(one.part_of is not None for one in left) == registry.ENDED_JOBS_KEPT


def write_files(job, size=0, modified_unix_ns=NOW, **more):
    """An ended job with its last state and both halves of its journal, `size` bytes each half."""
    one = entry(job, **({"ended_unix_ns": NOW - 60 * S, "heartbeat_unix_ns": NOW - 60 * S} | more))
    registry.write_entry(one)
    paths = [
        registry.entry_path(one).with_suffix(suffix)
        for suffix in (".last", ".journal", ".journal.1")
    ]
    for path in paths:
        path.touch()
        os.truncate(path, 0 if path.suffix == ".last" else size)
        os.utime(path, ns=(modified_unix_ns, modified_unix_ns))
    return [registry.entry_path(one), *paths]


def there(paths):
    return [path.exists() for path in paths]


def test_a_job_that_ended_two_weeks_ago_goes_with_all_its_files(home):
    old = write_files("old", ended_unix_ns=NOW - 15 * 86400 * S)
    fresh = write_files("fresh", ended_unix_ns=NOW - 13 * 86400 * S)

    registry.prune_ended(NOW)

    assert there(old) == [False] * 4
    assert there(fresh) == [True] * 4


def test_journals_that_are_too_large_together_go_oldest_first_and_never_a_living_one(home):
    """A home folder has a quota. The journals of a month of jobs must not fill it."""
    size = registry.JOURNALS_BYTES_MAX // 8 - 4096
    alive = write_files("alive", size, ended_unix_ns=None, heartbeat_unix_ns=NOW, started_unix_ns=0)
    ended = [
        write_files(f"job{number}", size, ended_unix_ns=NOW - (60 + number) * S)
        for number in range(5)
    ]

    registry.prune_ended(NOW)

    assert there(alive) == [True] * 4
    assert [there(paths)[0] for paths in ended] == [True, True, True, False, False]
    assert there(ended[3]) == [False] * 4


def test_the_journals_of_a_job_on_many_hosts_do_not_make_the_jobs_before_it_go(home):
    """Thirty hosts that share a home folder have thirty journals there, all of them in use."""
    size = registry.JOURNALS_BYTES_MAX // 8
    living = {"ended_unix_ns": None, "heartbeat_unix_ns": NOW}
    for number in range(8):
        part = {"role": "leaf", "part_of": "r0", "run": f"r{number}", "sender": f"{number:012}"}
        write_files("wide", size, **part, **living)
    before = [
        write_files(f"before{number}", size, ended_unix_ns=NOW - (60 + number) * S)
        for number in range(2)
    ]

    registry.prune_ended(NOW)

    assert [there(paths) for paths in before] == [[True] * 4] * 2
    assert len(registry.read_entries()) == 10


def test_a_job_that_ended_but_whose_relay_still_answers_is_kept(home):
    lingering = write_files("lingering", ended_unix_ns=NOW - 30 * 86400 * S, heartbeat_unix_ns=NOW)

    registry.prune_ended(NOW)

    assert there(lingering) == [True] * 4


def test_journals_without_a_job_file_go_when_they_are_old(home):
    """A person removed the job file by hand, or its relay ended before it wrote one."""
    old = write_files("old", modified_unix_ns=NOW - 15 * 86400 * S)
    fresh = write_files("fresh", modified_unix_ns=NOW - 86400 * S)
    old[0].unlink()
    fresh[0].unlink()

    registry.prune_ended(NOW)

    assert there(old[1:]) == [False] * 3
    assert there(fresh[1:]) == [True] * 3


def test_what_a_killed_relay_had_not_yet_renamed_goes_and_what_is_not_ours_stays(home):
    registry.write_entry(entry())
    killed, half_written = home.state / ".new-killed", home.state / ".new-just-now"
    foreign = [home.state / name for name in ("key", "notes.txt", "my.journal.txt")]
    for path in (killed, half_written, *foreign):
        path.touch()
        long_ago = NOW - (10 if path is half_written else 30 * 86400) * S
        os.utime(path, ns=(long_ago, long_ago))

    registry.prune_ended(NOW)

    assert there([killed, half_written, *foreign]) == [False, True, True, True, True]


def test_a_job_of_another_boot_is_found_under_its_own_name(home):
    """After a reboot this host has another identity, so its old jobs could not be removed any
    more.
    """
    one = entry(sender="beforeboot01")
    registry.write_entry(one)

    assert registry.entry_path(one).with_suffix(".journal") == registry.journal_path(
        "train", "r1", "beforeboot01"
    )
    assert registry.journal_path("train", "r1") != registry.journal_path(
        "train", "r1", "beforeboot01"
    )
