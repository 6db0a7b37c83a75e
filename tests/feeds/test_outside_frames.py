"""What a main thread does, by its frames, the line of its program and the kernel."""

import pytest

from ddtop.feeds.outside.stacks import ThreadSeen, read
from ddtop.wire.records import COLLECTIVE, INIT, P2P, UNCLEAR, StackFrame

SITE = "/opt/venv/lib/python3.11/site-packages"
C10D = f"{SITE}/torch/distributed/distributed_c10d.py"
LOGGER = StackFrame("_exception_logger.wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 83)
DDP = StackFrame("_sync_buffers", f"{SITE}/torch/nn/parallel/distributed.py", 9)
VERIFIES = StackFrame(
    "_verify_param_shape_across_processes", f"{SITE}/torch/distributed/utils.py", 288
)
STEP = StackFrame("step", "/home/ada/train.py", 40)
MAIN = StackFrame("<module>", "/home/ada/train.py", 77)


def frames(*inner):
    return (*inner, STEP, MAIN)


def c10d(function):
    return StackFrame(function, C10D, 3252)


@pytest.mark.parametrize(
    ("inner", "kind", "call"),
    [
        ((c10d("all_reduce"), LOGGER), COLLECTIVE, "all_reduce"),
        ((c10d("recv"), LOGGER), P2P, "recv"),
        ((c10d("_object_to_tensor"), c10d("all_gather_object")), COLLECTIVE, "all_gather_object"),
        ((c10d("_new_process_group_helper"), c10d("init_process_group")), INIT, None),
        ((DDP,), COLLECTIVE, None),
        ((VERIFIES,), COLLECTIVE, None),
        ((StackFrame("Event.wait", "/usr/lib/python3.11/threading.py", 5),), None, None),
        ((), None, None),
    ],
)  # fmt: skip
def test_the_library_frame_nearest_to_the_program_says_in_which_call_it_is(inner, kind, call):
    found = read(ThreadSeen(frames(*inner), torch=True))

    assert found.kind == kind
    assert call is None or found.call == call
    assert (found.place.function, found.place.line) == ("step", 40)


def test_a_lock_of_the_program_is_no_wait_for_other_ranks():
    thread = ThreadSeen(frames(), "with gate:", "S", "futex_do_wait", torch=True)

    assert read(thread).kind is None


def test_a_work_is_waited_for_in_c_on_the_line_that_calls_wait():
    thread = ThreadSeen(frames(), "work.wait()", "S", "futex_do_wait", torch=True)

    assert (read(thread).kind, read(thread).place.waits_on) == (COLLECTIVE, "collective")


def test_a_key_of_the_store_is_waited_for_in_poll_and_is_no_collective():
    thread = ThreadSeen(frames(), "store.wait(['best'])", "S", "do_poll.constprop.0", torch=True)

    assert read(thread).kind is None


def test_a_call_into_c_that_no_source_explains_is_unclear():
    """A verdict must not rely on it."""
    assert read(ThreadSeen(frames(), None, "S", "futex_do_wait", torch=True)).kind == UNCLEAR


@pytest.mark.parametrize(
    ("state", "wchan", "kind"),
    [("S", "futex_do_wait", UNCLEAR), ("S", "pipe_read", None), ("R", None, None)],
)
def test_a_rank_that_sleeps_in_an_operator_may_wait_for_others(state, wchan, kind):
    """A collective in a compiled function has no frame of torch.distributed. Two of three ranks in
    such a collective were blamed for the third.
    """
    operator = StackFrame("OpOverload.redispatch", f"{SITE}/torch/_ops.py", 850)
    thread = ThreadSeen(frames(operator), "y = reduce(y)", state, wchan, torch=True)

    assert read(thread).kind == kind


def test_calls_of_mpi_are_known_by_the_line_because_they_have_no_frame():
    def at(line):
        return read(ThreadSeen(frames(), line, "R", mpi=True))

    assert at("comm.Allreduce(a, b)").kind == COLLECTIVE
    assert at("comm.Allreduce(a, b)").call == "Allreduce"
    assert at("window.Fence()").call == "Win.Fence"
    assert at("out.Write_at_all(0, part)").call == "File.Write_at_all"
    assert at("comm.recv(source=1)").kind == P2P
    assert at("total = sum(values)").kind is None


@pytest.mark.parametrize(
    ("state", "wchan", "cuda", "kind"),
    [
        ("S", "futex_do_wait", False, COLLECTIVE),
        ("R", None, False, None),
        ("S", "futex_do_wait", True, UNCLEAR),
    ],
)
def test_backward_waits_for_others_where_its_thread_sleeps(state, wchan, cuda, kind):
    """With a GPU another thread computes the gradients meanwhile."""
    engine = StackFrame("_engine_run_backward", f"{SITE}/torch/autograd/graph.py", 824)

    assert read(ThreadSeen(frames(engine), None, state, wchan, torch=True, cuda=cuda)).kind == kind


def test_on_a_gpu_a_copy_to_the_host_may_wait_for_others():
    thread = ThreadSeen(frames(), "loss.item()", "R", cuda=True, torch=True)

    assert read(thread).kind == UNCLEAR


@pytest.mark.parametrize("inner", [(), (StackFrame("_run_exitfuncs", "/usr/lib/atexit.py", 9),)])
def test_a_main_thread_without_the_frame_of_its_program_is_leaving(inner):
    """The same happens after an exception, which cannot be seen from outside."""
    assert read(ThreadSeen(inner, torch=True)).phase == "leaving"
    assert read(ThreadSeen((*inner, MAIN), torch=True)).phase == "running"


def test_a_rank_at_its_end_is_leaving():
    end = StackFrame("_shutdown", "/usr/lib/python3.11/threading.py", 1530)

    assert read(ThreadSeen((end,))).phase == "leaving"
