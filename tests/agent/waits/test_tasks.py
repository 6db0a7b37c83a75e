"""The tasks of an event loop, as they are read beside it."""

from ddtop.agent.waits.tasks import listed


def test_of_a_set_that_a_loop_changes_meanwhile_no_task_is_read_at_this_look():
    def changing():
        yield "first"
        raise RuntimeError("Set changed size during iteration")

    assert listed(["first", "second"]) == ["first", "second"]
    assert listed(changing()) == []
