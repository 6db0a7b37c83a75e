"""Text that must not be in a ticket, in the forms in which it occurs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.present.report import HIDDEN, redacted

SECRET = "s3cr3tValue0123456789abcdef"


@pytest.mark.parametrize(
    "text",
    [
        f"WANDB_API_KEY={SECRET}",
        f"api_key = '{SECRET}'",
        f'"password": "two words {SECRET}"',
        f"client_secret: {SECRET}",
        f"train.py --hf-token {SECRET} --lr 3",
        f"train.py --hf_token={SECRET}",
        f"+logger.apikey={SECRET}",
        f"https://ada:{SECRET}@git.example.org/x.git",
        f"https://{SECRET}@git.example.org/x.git",
        f"redis://:{SECRET}@cache:6379/0",
        f"Authorization: Basic {SECRET}=",
        f"'authorization': 'token {SECRET}'",
        f"Bearer {SECRET}",
        f"s3.example.org/a?X-Amz-Signature={SECRET}&x=1",
        f"https://blob.example.org/c?sv=1&sig={SECRET}",
        f"hf_{SECRET}",
        f"ghp_{SECRET}",
        f"sk-{SECRET}",
        f"glpat-{SECRET}",
        f"eyJhbGciOiJ.{SECRET}.{SECRET}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}",
    ],
)
def test_a_secret_goes_whatever_its_shape(text):
    """No list of names filters an exception's text or a line of source."""
    shown = redacted(f"before {text} after")

    assert SECRET not in shown
    assert HIDDEN in shown
    assert shown.startswith("before ")


def test_keys_of_the_cloud_are_known_by_their_look():
    assert redacted("uses AKIAIOSFODNN7EXAMPLE now") == f"uses {HIDDEN} now"


@pytest.mark.parametrize(
    "text",
    [
        "tokenizer.py:40 load_tokens",
        "rank 3 (pid 41): state S, wchan futex_wait",
        "see https://pytorch.org/docs?page=2 and user@example.org",
        "keyboard_interrupt › passes › __getitem__",
        "if key == 3: pass",
        "16:59:40  critical: not-in-collective",
        "NCCL_DEBUG=INFO",
    ],
)
def test_what_is_no_secret_stays(text):
    """A report without line numbers helps nobody."""
    assert redacted(text, "/home/ada") == text


def test_the_home_folder_becomes_a_tilde():
    shown = redacted(
        "/home/ada/train.py /home/adams/x '/home/ada' /data/home/ada.bak", "/home/ada/"
    )

    assert shown == "~/train.py /home/adams/x '~' /data/home/ada.bak"
    assert redacted("/usr/bin", "/") == "/usr/bin"


@given(st.text() | st.text(st.sampled_from("key=:\"' \n-token/@.eyJ")))
def test_redacting_twice_changes_nothing_more(text):
    once = redacted(text, "/home/ada")

    assert redacted(once, "/home/ada") == once
