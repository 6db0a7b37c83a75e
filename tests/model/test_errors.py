"""What the texts of exceptions say, in the words of torch and its backends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.model.errors import address_in, named_in, sharing_a_gpu
from tests.diagnosis.rules.comm_error import BARRIER, CLOSED


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (BARRIER, (2,)),
        ("Ranks 1, 2 failed to pass monitoredBarrier in 2000 ms", (1, 2)),
        (
            (
                "received errors while waiting for send/recv from rank 7. Please check rank 7 logs"
                " for faulty rank."
            ),
            (7,),
        ),
        ("[Rank 3] Watchdog caught collective operation timeout", ()),
        (CLOSED, ()),
    ],
)
def test_ranks_in_torch_s_words(text, ranks):
    assert named_in(text) == ranks


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (CLOSED, "10.0.0.2:41233"),
        ("Connection closed by remote peer node1<44444>", "node1:44444"),
        ("Connection reset by peer [fe80::1%eth0]:19", "fe80::1%eth0:19"),
        ("Connection reset by peer", None),
    ],
)
def test_addresses_in_the_backend_s_words(text, address):
    assert address_in(text) == address


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("Duplicate GPU detected : rank 3 and rank 1 both on CUDA device 1b000", (1, 3)),
        (
            (
                "Multiple ranks are using the same GPU. Duplicate GPU detected : rank 0 and rank 2"
                " both on CUDA device 1b000"
            ),
            (0, 2),
        ),
        ("ncclInvalidUsage: Multiple ranks are using the same GPU", ()),
        ("CUDA error: invalid device ordinal", ()),
    ],
)
def test_ranks_on_one_gpu_in_nccl_s_words(text, ranks):
    assert sharing_a_gpu(text) == ranks


@given(
    st.one_of(
        st.text(max_size=600),
        st.from_regex(r"ranks? [0-9, ]{0,40} failed to pass", fullmatch=False),
    )
)
def test_whatever_the_text_says_the_numbers_are_ranks(text):
    assert all(0 <= rank < 10**7 for rank in named_in(text))
    assert address_in(text) is None or ":" in address_in(text)
