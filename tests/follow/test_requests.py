"""What a viewer requested and what resulted, without a relay and without a clock."""

from __future__ import annotations

from ddtop.follow.requests import ANSWERS_S, NATIVE_ANSWERS_S, REPLY_S, Requests, signal_command
from ddtop.wire.records import BY_SIGNAL, NATIVE, Reply, Stacks

ASKED_NS = 5_000


def asked(ranks=(), how=""):
    asking = Requests()
    command = asking.stacks(ranks, ASKED_NS, 0.0, how)
    return asking, command.arguments[0]


def answer(request, rank, **more):
    return Stacks(request, rank, 100 + rank, ASKED_NS + 1, "agent", **more)


def test_the_command_names_the_request_the_ranks_and_the_way():
    first, second, third = (
        Requests().stacks((0, 3, 4, 5), 0, 0.0, how).arguments for how in ("", NATIVE, BY_SIGNAL)
    )

    assert first[1:] == ("0,3-5", "")
    assert second[1:] == ("0,3-5", "native")
    assert third[1:] == ("0,3-5", "signal")
    assert first[0] != second[0]
    assert Requests().stacks((), 0, 0.0).arguments[1] == ""


def test_answers_are_counted_until_all_have_come():
    asking, request = asked()
    states = [asking.dump(0.1)]
    asking.take(Reply("stacks", text=request, count=2), 0.1)
    for rank in (0, 1):
        asking.take(answer(request, rank), 0.2)
        states.append(asking.dump(0.2))

    assert [(dump.expected, dump.answered, dump.done) for dump in states] == [
        (None, 0, False),
        (2, 1, False),
        (2, 2, True),
    ]
    assert states[0].asked_unix_ns == ASKED_NS


def test_an_answer_that_overtakes_the_relays_reply_counts():
    """A stopped rank is already answered for while the relay still counts which ranks it asks."""
    asking, request = asked()
    asking.take(Stacks(request, 0, 100, 0, why="stopped"), 0.1)
    asking.take(Reply("stacks", text=request, count=1), 0.1)

    assert asking.dump(0.1).done


def test_workers_other_requests_and_repetitions_are_not_counted():
    asking, request = asked()
    asking.take(Reply("stacks", text=request, count=3), 0.0)
    for stacks in (
        answer(request, 0),
        answer(request, 0),
        answer("another", 1),
        answer(request, 1, worker=True),
    ):
        asking.take(stacks, 0.1)

    assert asking.dump(0.1).answered == 1


def test_a_refusal_is_final_and_says_why():
    asking, _ = asked()
    asking.take(Reply("stacks", ok=False, text="unknown command stacks"), 0.1)

    assert (asking.dump(99.0).refused, asking.dump(99.0).done) == ("unknown command stacks", True)


def test_a_relay_that_does_not_answer_is_not_waited_for():
    asking, _ = asked()

    assert not asking.dump(REPLY_S).done
    assert asking.dump(REPLY_S + 0.1).refused == "the relay did not answer within 2 s"


def test_what_does_not_come_is_given_up_some_seconds_after_the_last_that_came():
    asking, request = asked()
    asking.take(Reply("stacks", text=request, count=3), 1.0)
    asking.take(answer(request, 0), 6.0)

    assert asking.dump(6.0 + ANSWERS_S).refused is None
    late = asking.dump(6.1 + ANSWERS_S)
    assert (late.refused, late.answered) == ("2 answers did not come within 8 s", 1)
    asking.take(answer(request, 1), 15.0)
    assert asking.dump(15.0).refused is None


def test_py_spy_is_given_more_time():
    asking, request = asked(how=NATIVE)
    asking.take(Reply("stacks", text=request, count=1), 0.0)

    assert asking.dump(NATIVE_ANSWERS_S).refused is None
    assert asking.dump(NATIVE_ANSWERS_S + 0.1).refused is not None


def test_the_reply_to_an_earlier_request_changes_nothing():
    asking, first = asked()
    asking.stacks((), ASKED_NS, 1.0)
    asking.take(Reply("stacks", text=first, count=8), 1.1)

    assert asking.dump(1.1).expected is None


def test_only_answers_to_questions_are_taken():
    asking = Requests()

    asking.take(Reply("live"), 0.0)
    asking.take(Reply("stacks", text="r", count=1), 0.0)
    assert asking.dump(0.0) is None


def test_the_answer_to_a_signal_is_given_once_and_not_an_earlier_one():
    asking = Requests()
    asking.take(Reply("signal", text="sent SIGTERM to rank 0"), 0.0)
    asking.take(Reply("signal", ok=False, text="rank 1 is gone"), 0.0)

    assert asking.reply("signal").text == "rank 1 is gone"
    assert asking.reply("signal") is None


def test_a_signal_names_rank_pid_and_number():
    assert signal_command(3, 4711, 15).arguments == ("3", "4711", "15")
