"""Which lines end a wait, by the text of a program."""

import pytest

from ddtop.wait_ends import StackLine, endings_of, way_to

PROGRAM = """\
class Statistics:
    def __init__(self):
        self.free, self.ready = Condition(), Event()
        self.ready.set()
    def run(self):
        with self.free:
            self.free.wait()
        self.ready.wait()
    def flush(self):
        with self.free:
            # self.free.notify() is not enough
            self.free.notify_all()
    def turn(self):
        item = self.items.get(timeout=3)
        self.bell.acquire()
    def add(self, item):
        self.items.put_nowait(item)
        self.spare_items.put(item)
def report(statistics):
    statistics.flush()
async def main():
    for step in range(9):
        report(statistics)
        step += 1
    answers[step].set_result(1)
def wait(step):
    answers[step].result()
def ring():
    for one in every:
        one.bell.release()
    done()
""".splitlines()
FILES = {"feed.py": PROGRAM, "train.py": ["def train(feed):", "    feed.add(batch)"]}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (7, [("self.free.notify_all()", "flush", 12)]),
        (8, []),  # Set before anybody waits.
        (14, [("self.items.put_nowait(item)", "add", 17)]),
        (15, [("one.bell.release()", "ring", 30)]),
        (28, []),
        (12, []),
        (99, []),
    ],
)
def test_the_lines_that_end_a_wait_call_a_method_of_an_object_of_that_name(line, found):
    every = endings_of(FILES, "feed.py", line)

    assert [(one.text, one.spot.function, one.spot.line) for one in every] == found


@pytest.mark.parametrize(
    ("line", "spot", "comes"),
    [
        (7, ("flush", 10), True),
        (7, ("report", 20), True),
        (7, ("main", 22), True),
        (7, ("main", 24), True),  # It is in the same loop.
        (7, ("main", 25), False),
        (7, ("wait", 27), False),
        (15, ("ring", 29), True),
        (15, ("ring", 31), False),
        (14, ("add", 18), False),  # It has passed that line.
        (14, ("train", 2, "train.py"), True),
        (14, ("add", 2, "train.py"), False),
    ],
)
def test_a_thread_before_that_line_or_before_a_call_of_its_function_comes_to_it(line, spot, comes):
    (ending,) = endings_of(FILES, "feed.py", line)
    function, at, *file = spot
    spots = [StackLine("elsewhere", "feed.py", 1), StackLine(function, *(file or ["feed.py"]), at)]

    assert (way_to(FILES, ending, spots) is not None) is comes


@pytest.mark.parametrize(("count", "told"), [(4, 4), (5, 0)])
def test_of_a_wait_that_many_lines_end_none_is_told(count, told):
    feeds = "\n".join(f"def feed_{at}(self):\n    self.rows.put({at})" for at in range(count))
    files = {"feed.py": f"def take(self):\n    self.rows.get()\n{feeds}".splitlines()}

    assert len(endings_of(files, "feed.py", 2)) == told
