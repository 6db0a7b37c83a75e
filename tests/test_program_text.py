"""What the text of a program says around a line."""

import pytest

from ddtop.program_text import (
    condition_of,
    held_at,
    is_in_loop,
    is_timed,
    key_at,
    names_in,
    taken_at,
)

LOOPS = """\
def collect():
    while len(seen) < need:
        time.sleep(0.2)
    while True:
        row = ask()
        # not yet
        if row is not None:
            break
        time.sleep(1)
    while not ready(): time.sleep(1)
    for _ in range(100):
        if os.path.exists(path):
            return path
        time.sleep(0.1)
    while step < steps:
        data = conn.recv()
    while True:
        time.sleep(1)
    while step < steps:
        if wants(step):
            pack(step)
            time.sleep(5)
    time.sleep(1)
    while True: time.sleep(1)
""".splitlines()


@pytest.mark.parametrize(
    ("line", "condition"),
    [
        (3, "len(seen) < need"),
        (2, "len(seen) < need"),
        (9, "not (row is not None)"),
        (10, "not ready()"),
        (24, "True"),
        (14, "not (os.path.exists(path))"),
        (16, None),
        (18, "True"),
        (22, "step < steps"),
        (23, None),
        (0, None),
        (99, None),
    ],
)
def test_a_loop_that_pauses_goes_on_while_its_condition_holds(line, condition):
    """The loop of a training, in which a rank only waits for something else, is no such loop."""
    assert condition_of(LOOPS, line) == condition


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("len(seen) < need", {"seen", "need"}),
        ("not ready()", set()),
        ("self.full and n < most", {"self.full", "n", "most"}),
        ("n <", {"n"}),
        ("(" * 3000, set()),
        ("'done in' not in text and f\"{step:3}/{left}\" != key", {"text", "step", "left", "key"}),
    ],
)
def test_the_variables_of_a_condition_are_those_that_it_does_not_call(condition, names):
    assert set(names_in(condition)) == names


def test_a_line_stands_in_the_loops_of_its_function():
    assert [is_in_loop(LOOPS, line) for line in (3, 12, 20, 23, 1)] == [True] * 3 + [False] * 2


LOCKS = """\
class Cache:
    def lookup(self):
        with self.lock:
            return 1

    def refresh(self):
        with self.lock, open(path) as file:
            data = fetch()
        with self.lock:
            if stale:
                load()
        self.lock.acquire(timeout=3)
""".splitlines()


@pytest.mark.parametrize(
    ("line", "taken"), [(3, "self.lock"), (12, "self.lock"), (4, None), (10, None)]
)
def test_a_line_takes_what_it_names(line, taken):
    assert taken_at(LOCKS, line) == taken


@pytest.mark.parametrize(
    ("line", "held"),
    [(4, ["self.lock"]), (11, ["self.lock"]), (8, ["self.lock", "open(path)"]), (12, []), (3, [])],
)
def test_a_line_is_inside_the_blocks_around_it(line, held):
    assert list(held_at(LOCKS, line)) == held


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('store.wait(["shards/ready"], timedelta(hours=1))', '"shards/ready"'),
        ('dist.distributed_c10d._get_default_store().wait(["seed"])', '"seed"'),
        ('self.store.get(f"phase/{number}")', 'f"phase/{number}"'),
        ("tcp_store.get(key)", "key"),
        ("shelf.get(key)", None),
        ("while store.add(key, 1) > 1:", "key"),
        ("while store.add(key, 0) < world:", None),
    ],
)
def test_the_key_of_a_store_is_the_first_one_of_the_call(text, key):
    found = key_at([text], 1)

    assert (found and found.named) == key


TIMED = """\
def waits():
    while not ready():
        if time.time() - begun > 30:
            raise TimeoutError
        time.sleep(1)
    while time.monotonic() < until:
        time.sleep(0.5)
    while not ready() or time.time() < until:
        time.sleep(0.5)
    while True:
        if elapsed > limit: break
        time.sleep(0.5)
    while len(seen) < need:
        time.sleep(0.5)
    time.sleep(0.5)
    while time.time() < until:
        for shard in shards:
            time.sleep(0.5)
""".splitlines()


@pytest.mark.parametrize(
    ("line", "timed"),
    [(5, True), (7, True), (9, False), (12, True), (14, False), (15, False), (18, False)],
)
def test_a_loop_that_a_clock_ends_has_a_time_limit(line, timed):
    assert is_timed(TIMED, line) is timed


ENDLESS = """\
def parks():
    while True:
        # forever
        time.sleep(1)
    while True: answer()
def serves():
    while True:
        answer()
        time.sleep(1)
""".splitlines()


def test_a_loop_that_only_sleeps_goes_on_while_true():
    assert [condition_of(ENDLESS, line) for line in (4, 5, 9)] == ["True", None, None]
