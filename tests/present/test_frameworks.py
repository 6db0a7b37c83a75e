"""The stack of a job under a training framework: folded by its name, and unfolded on request."""

from ddtop.model.stacks import merge
from ddtop.present.stacks import Around, Shape, stacks_lines
from ddtop.present.text import UNICODE, plain
from ddtop.wire.records import StackFrame, Stacks, ThreadStack

SITE = "/opt/env/lib/python3.11/site-packages/"
LIGHTNING = [
    StackFrame(name, f"{SITE}lightning/pytorch/trainer/{file}.py", 10, False)
    for name, file in (("_call_hook", "call"), ("Trainer._run", "trainer"), ("fit", "trainer"))
]
TORCH = [
    StackFrame(name, f"{SITE}torch/nn/modules/module.py", 20, False)
    for name in ("_call_impl", "_wrapped_call_impl")
]
HOOK = StackFrame("MyCallback.on_train_batch_end", "/home/ada/train.py", 31, True)
MAIN = StackFrame("main", "/home/ada/train.py", 80, True)
OWN = StackFrame("_wrap_wait.<locals>.wait", "/opt/ddtop/agent/wrap/p2p.py", 5, False)


def texts(*frames, **shape):
    stacks = Stacks("r1", 0, 4800, 1, "agent", (ThreadStack(frames, main=True),))
    lines = stacks_lines(merge([stacks]), 100, UNICODE, Around(), Shape(**shape))
    return [plain(line).rstrip() for line in lines]


def test_the_frames_of_a_framework_are_folded_under_its_name():
    assert texts(HOOK, *LIGHTNING, MAIN)[1:] == [
        "     train.py:80 main › lightning (3 frames) › train.py:31 MyCallback.on_train_batch_end"
    ]


def test_a_framework_is_named_before_the_torch_that_it_calls():
    assert texts(*TORCH * 3, *LIGHTNING, MAIN)[1:] == [
        "     train.py:80 main › lightning and torch (8 frames) › _call_impl"
    ]


def test_on_request_every_frame_has_a_line_with_its_library():
    assert texts(*TORCH, HOOK, *LIGHTNING, MAIN, frames=True)[1:] == [
        "     train.py:80 main",
        "     trainer.py:10 fit  lightning",
        "     trainer.py:10 Trainer._run  lightning",
        "     call.py:10 _call_hook  lightning",
        "     train.py:31 MyCallback.on_train_batch_end",
        "     module.py:20 _wrapped_call_impl  torch",
        "     module.py:20 _call_impl  torch",
    ]


def test_what_ddtop_itself_runs_in_a_rank_is_in_no_stack():
    assert "wait" not in "".join(texts(OWN, *TORCH, MAIN, frames=True))
