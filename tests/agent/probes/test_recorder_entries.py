"""What NCCL's recorder keeps: collectives, coalesced calls, sends and receives."""

from ddtop.agent.probes.recorder import _Entry, collectives_of


class Nccl:
    """One group of NCCL: torch's collective(), pointToPoint() and endCoalescing()."""

    def __init__(self, group="0"):
        self.group, self.seq, self.p2p, self.entries = group, 0, 0, []

    def _record(self, name, done, is_p2p=False):
        self.entries.append(
            _Entry(
                record_id=len(self.entries),
                process_group=(self.group, ""),
                collective_seq_id=self.seq,
                p2p_seq_id=self.p2p,
                profiling_name=f"nccl:{name}",
                retired=done,
                is_p2p=is_p2p,
                state="completed" if done else "scheduled",
            )
        )

    def collective(self, name="all_reduce", done=True):
        self.seq += 1
        self._record(name, done)

    def single(self, name="send 0->1", done=True):
        self.p2p += 1
        self._record(name, done, is_p2p=True)

    def batch(self, done=True):
        self.p2p += 1
        for name in ("send 0->1", "recv 0<-1"):
            self._record(name, False, is_p2p=True)
        self._record("coalesced", done)

    def together(self, *names, whole="ALLGATHER_coalesced", done=True):
        self.seq += 1
        for name in names:
            self._record(name, False)
        self._record(whole, done)

    def told(self):
        return [
            (first.profiling_name, first.collective_seq_id, state.retired)
            for first, state in collectives_of(self.entries)
        ]


def test_plain_collectives_are_told_one_by_one():
    nccl = Nccl()
    nccl.collective()
    nccl.collective("broadcast", done=False)

    assert nccl.told() == [("nccl:all_reduce", 1, True), ("nccl:broadcast", 2, False)]


def test_a_batch_of_sends_and_receives_is_no_collective_though_it_says_so():
    """Two of these after #1 would look like a second #1 with another operation."""
    nccl = Nccl()
    nccl.collective()
    nccl.batch()
    nccl.batch(done=False)
    nccl.collective("broadcast")

    assert nccl.told() == [("nccl:all_reduce", 1, True), ("nccl:broadcast", 2, True)]


def test_the_parts_of_a_call_are_one_collective_and_end_with_it():
    """An uneven all_gather is a broadcast by each member, whose entries stay scheduled."""
    nccl = Nccl()
    nccl.together("broadcast", "broadcast")
    nccl.together("broadcast", "broadcast", done=False)

    assert nccl.told() == [("nccl:broadcast", 1, True), ("nccl:broadcast", 2, False)]


def test_a_coalesced_collective_after_a_single_send_is_reported():
    """allreduce_coalesced is one entry with a number of its own."""
    nccl = Nccl()
    nccl.single()
    nccl.collective("allreduce_coalesced")

    assert nccl.told() == [("nccl:allreduce_coalesced", 1, True)]


def test_groups_do_not_mix():
    one, two = Nccl("0"), Nccl("1")
    one.collective()
    two.collective("broadcast")
    one.batch()
    entries = [one.entries[0], two.entries[0], *one.entries[1:]]

    assert [first.profiling_name for first, _ in collectives_of(entries)] == [
        "nccl:all_reduce",
        "nccl:broadcast",
    ]


def test_a_group_that_is_made_anew_counts_from_one_again():
    """The entries of the previous group of that name are still there."""
    nccl = Nccl()
    nccl.collective()
    nccl.seq = 0
    nccl.collective("broadcast", done=False)

    assert nccl.told() == [("nccl:all_reduce", 1, True), ("nccl:broadcast", 1, False)]
