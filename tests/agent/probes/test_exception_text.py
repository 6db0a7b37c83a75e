"""What the text of an exception keeps."""

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
