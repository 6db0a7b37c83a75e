"""What the text of an exception keeps."""

import pytest

from ddtop.agent.probes.exceptions import one_line

FRAMES = "".join(
    f'  File "/usr/lib/torch/api.py", line {n}, in save\n    run()\n' for n in range(99)
)


def test_a_quoted_traceback_is_told_by_the_error_at_its_end():
    """Its frames alone are longer than what is kept."""
    text = (
        f"ranks: [1]\nTraceback (most recent call last): (RANK 1)\n{FRAMES}TypeError: no pickle\n"
    )

    assert one_line(RuntimeError(text)) == "ranks: [1] (RANK 1) TypeError: no pickle"


def test_a_text_without_a_traceback_keeps_its_indented_lines():
    assert one_line(RuntimeError("a\n  b\n    c")) == "a b c"


WORKER = (
    "Caught {kind} in DataLoader worker process 0.\n"
    "Original Traceback (most recent call last):\n"
    '  File "/v/lib/python3.11/site-packages/torch/fetch.py", line 54, in fetch\n'
    "    data = self.dataset[index]\n"
    '  File "/home/ada/faces.py", line 12, in __getitem__\n'
    "    return decode(path)\n"
    '  File "/v/lib/python3.11/site-packages/PIL/Image.py", line 3580, in open\n'
    "    raise UnidentifiedImageError(msg)\n"
    "{error}\n"
)


@pytest.mark.parametrize(
    ("raised", "error", "told"),
    [
        (ValueError, "ValueError: bad image 'x.png'", "bad image 'x.png'"),
        (ValueError, "lib.ValueError: bad image 'x.png'", "bad image 'x.png'"),
        (RuntimeError, "lib.Unreadable: bad image", "lib.Unreadable: bad image"),
        (ValueError, "ValueError", "ValueError"),
    ],
)
def test_the_error_of_a_loaders_worker_is_told_first_and_where_its_code_raised_it(
    raised, error, told
):
    text = WORKER.format(kind="ValueError", error=error)

    assert one_line(raised(text)) == (
        f"{told} (in DataLoader worker process 0, faces.py:12 __getitem__)"
    )


class KeyErrorMessage(str):
    """As torch's: the text of a KeyError of a worker, shown without quotes."""

    def __repr__(self):
        return self


def test_a_text_of_a_class_of_its_own_is_told_as_the_text_that_it_is():
    text = KeyErrorMessage(WORKER.format(kind="KeyError", error="KeyError: '~'"))

    assert one_line(KeyError(text)) == (
        "'~' (in DataLoader worker process 0, faces.py:12 __getitem__)"
    )
