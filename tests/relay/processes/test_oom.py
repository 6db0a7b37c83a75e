"""Whether the OOM killer ended a process: its log names the victim, the cgroup has only a count."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.relay.processes import cgroup
from ddtop.relay.processes.cgroup import Kill
from ddtop.relay.processes.sample import OOM_RECENT_S

NOW = 900_000_000_000_000
AT_US = NOW // 1000 - 2_000_000
OURS = (
    f"4,900,{AT_US},-;Memory cgroup out of memory: Killed process 4801 (python) total-vm:9000kB,"
    " anon-rss:8000kB\n"
)
CHOSEN = (
    f"6,899,{AT_US},-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/s/7,task_memcg=/s/7,task=python,pid=4801,uid=1000\n"
    " SUBSYSTEM=x\n"
)
OLD_KERNEL = f"3,898,{AT_US},c;Kill process 4801 (python) score 912 or sacrifice child\n"
OTHER = f"4,901,{AT_US},-;Out of memory: Killed process 77 (chrome) total-vm:9000kB\n"


def kills(*records):
    return cgroup.kills_in([record.encode() for record in records], NOW, OOM_RECENT_S)


@pytest.mark.parametrize("record", [OURS, CHOSEN, OLD_KERNEL])
def test_the_log_names_the_process_in_every_way_it_is_written(record):
    (kill,) = kills(record)

    assert kill.pid == 4801
    assert "\n" not in kill.line
    assert cgroup.verdict(4801, None, None, (kill,)) == (True, kill.line)


def test_a_count_that_rose_for_another_process_is_not_ours():
    """The OOM killer took a script of the same cgroup; the scheduler killed rank 1."""
    assert cgroup.verdict(4801, 2, 3, kills(OTHER)) == (False, None)


def test_with_two_kills_ours_is_found_whatever_the_order():
    assert cgroup.verdict(4801, 2, 4, kills(OURS, OTHER))[0] is True
    assert cgroup.verdict(4801, 2, 4, kills(OTHER, OURS))[0] is True


@pytest.mark.parametrize(
    ("before", "now", "log", "killed"),
    [
        (2, 3, None, True),
        (2, 3, (), True),
        (2, 2, None, False),
        (None, 3, None, None),
        (2, None, None, None),
        (None, None, (), False),
    ],
)
def test_without_a_line_the_cgroups_count_tells_and_without_either_nothing_does(
    before, now, log, killed
):
    """A readable log without a kill is an answer too."""
    assert cgroup.verdict(4801, before, now, log) == (killed, None)


def test_a_kill_of_an_hour_ago_is_not_of_now():
    """The kernel reuses pids."""
    assert kills(OURS.replace(str(AT_US), str(AT_US - 3600 * 1_000_000))) == ()


def test_other_lines_of_the_log_are_passed_over():
    assert (
        kills(
            f"6,1,{AT_US},-;Linux version 6.1",
            "",
            "garbage",
            "6,1;x",
            f"6,1,{AT_US},-;process 12 killed",
        )
        == ()
    )


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_no_bytes_of_the_log_make_it_raise(records):
    assert all(kill.pid >= 0 for kill in cgroup.kills_in(records, NOW, OOM_RECENT_S))


def test_a_log_that_cannot_be_opened_tells_nothing(tmp_path):
    assert cgroup.read_log(OOM_RECENT_S, tmp_path / "kmsg") is None


def test_the_real_log_is_read_at_once_or_not_at_all():
    """A read that waits for the next message of the kernel may never return."""
    found = cgroup.read_log(OOM_RECENT_S)

    assert found is None or all(isinstance(kill, Kill) for kill in found)


def test_a_log_whose_last_line_is_long_past_ends_the_reading(tmp_path, monkeypatch):
    """A pipe stands for the device: one record per read, then no more for now."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.write(write_end, OURS.encode())
    try:
        assert cgroup.kills_in(cgroup._records(read_end), NOW, OOM_RECENT_S)[0].pid == 4801
    finally:
        os.close(read_end)
        os.close(write_end)
