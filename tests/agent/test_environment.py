"""No variable or argument that looks secret leaves the process."""

import pytest

from ddtop.agent.environment import ARGUMENTS, VALUE_CHARACTERS, redacted_argv, redacted_environment


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--wandb-api-key=abc"], ("--wandb-api-key=(redacted)",)),
        (["--hf_token", "abc"], ("--hf_token", "(redacted)")),
        (["--password", "abc", "x"], ("--password", "(redacted)", "x")),
        (["--secret=a=b"], ("--secret=(redacted)",)),
        (["-token=abc"], ("-token=(redacted)",)),
        (["--db.PASSWORD", "abc"], ("--db.PASSWORD", "(redacted)")),
        (["--use-token", "--lr", "1"], ("--use-token", "--lr", "1")),
        (["--lr", "0.1", "data.py"], ("--lr", "0.1", "data.py")),
        pytest.param(
            ["trainer.api_key=abc"], ("trainer.api_key=(redacted)",),
        ),
        (["--tokenizer", "bert"], ("--tokenizer", "bert")),
        (["--auth=abc"], ("--auth=(redacted)",)),
        (["--credentials", "abc"], ("--credentials", "(redacted)")),
        (["--secret", "-abc", "x"], ("--secret", "(redacted)", "x")),
        (["--pwd=abc"], ("--pwd=(redacted)",)),
        (["-p", "hunter2"], ("-p", "(redacted)")),
        (["-p", "29500"], ("-p", "29500")),
        (["-u", "ada:abc"], ("-u", "ada:(redacted)")),
        (['{"auth": {"token": "abc1def"}}'], ('{"auth": {"token": (redacted)}}',)),
    ],
)  # fmt: skip
def test_secrets_on_the_command_line_are_replaced(words, shown):
    """hydra writes `trainer.api_key=...` without dashes, and reports go into tickets."""
    assert redacted_argv(["python", *words]) == ("python", *shown)


def test_a_long_command_line_is_cut():
    shown = redacted_argv(["x" * 1000] * 100)

    assert len(shown) == ARGUMENTS
    assert {len(word) for word in shown} == {VALUE_CHARACTERS}


def test_only_variables_of_distributed_training_leave_the_process():
    environment = {
        "MASTER_ADDR": "node0",
        "NCCL_SOCKET_IFNAME": "eth0",
        "RANK": "0",
        "SLURM_JOB_ID": "7",
        "AWS_SECRET_ACCESS_KEY": "x",
        "WANDB_API_KEY": "x",
        "HOME": "/home/ada",
        "DDTOP_KEY": "x",
        "PATH": "/bin",
    }

    assert sorted(redacted_environment(environment)) == [
        "MASTER_ADDR",
        "NCCL_SOCKET_IFNAME",
        "RANK",
        "SLURM_JOB_ID",
    ]


def test_a_secret_among_them_is_replaced():
    environment = {"TORCH_HUB_TOKEN": "abc", "NCCL_AUTH_KEY": "abc", "TORCH_HOME": "x" * 1000}

    shown = redacted_environment(environment)

    assert (shown["TORCH_HUB_TOKEN"], shown["NCCL_AUTH_KEY"]) == ("(redacted)", "(redacted)")
    assert len(shown["TORCH_HOME"]) == VALUE_CHARACTERS


class Leaving(dict):
    """An environment whose variables are gone when they are read."""

    def __getitem__(self, name):
        raise KeyError(name)

    def get(self, name, default=None):
        return default


def test_a_variable_that_the_program_removes_meanwhile_is_left_out():
    assert redacted_environment(Leaving(MASTER_ADDR="node1", MASTER_PORT="29500")) == {}
