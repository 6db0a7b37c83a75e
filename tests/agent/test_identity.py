"""Who a process is, by its environment and its command line."""

from __future__ import annotations

import pytest

from ddtop.agent.identity import (
    CANDIDATE,
    CLAIM,
    IGNORED,
    LAUNCHER,
    RANK,
    chosen_run_id,
    fingerprint,
    identify,
    launched_script,
)

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
PID = 4730


def role(line, environ=()):
    return identify(dict(environ), line.split(), PID).role


# -- without a launcher's variables


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python train.py", CANDIDATE),
        ("python -u /home/ada/train.py --lr 0.1", CANDIDATE),
        ("python -m pkg.train --lr 0.1", CANDIDATE),
        ("python -X faulthandler -W error train.py", CANDIDATE),
        ("python -c pass", CANDIDATE),
        ("python", CANDIDATE),
        ("python - x", CANDIDATE),
        ("/usr/bin/python /usr/bin/torchrun --nproc-per-node 4 train.py", LAUNCHER),
        ("python -m torch.distributed.run --nproc-per-node 4 train.py", LAUNCHER),
        ("python -um torch.distributed.launch train.py", LAUNCHER),
        ("python /env/bin/accelerate launch train.py", LAUNCHER),
        ("python /env/bin/deepspeed train.py", LAUNCHER),
        ("python /env/bin/pip install torch", IGNORED),
        ("python -m pip install torch", IGNORED),
        ("python /env/bin/ray start --head", IGNORED),
        ("python -m pip._internal install", IGNORED),
        ("python /env/bin/ddtop attach", IGNORED),
        ("python -m ddtop jobs", IGNORED),
        ("python -m ddtop.relay --job x --run y", IGNORED),
        ("python -c from multiprocessing.resource_tracker import main;main(5)", IGNORED),
        ("python -c from multiprocessing.forkserver import main;", IGNORED),
        ("python /env/lib/torch/_inductor/compile_worker/__main__.py --workers=4", IGNORED),
        ("python -m torch._inductor.compile_worker", IGNORED),
        ("python -c from multiprocessing.spawn import spawn_main; spawn_main() --multiprocessing-fork", CANDIDATE),
    ],
)
def test_role_without_a_launchers_variables(line, expected):
    assert role(line) == expected


# -- with a launcher's variables


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -u train.py", RANK),
        ("python -m pkg.train", RANK),
        ("python -c pass", CANDIDATE),
        ("python", CANDIDATE),
        ("python -m pip install x", IGNORED),
        ("python /env/bin/ddtop status", IGNORED),
        ("python -c from multiprocessing.spawn import spawn_main; spawn_main() --multiprocessing-fork", CANDIDATE),
        ("python -c from multiprocessing.resource_tracker import main;main(5)", IGNORED),
    ],
)
def test_role_with_a_launchers_variables(line, expected):
    """A rank that runs pip, a one-liner or a worker gives them all its environment."""
    assert role(line, TORCHRUN) == expected


def test_a_rank_knows_all_its_numbers():
    who = identify(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"}, ["python", "-u", "/home/ada/train.py"], PID)

    assert (who.rank, who.local_rank, who.world_size, who.attempt) == (3, 1, 8, 2)
    assert (who.script, who.elastic) == ("train", True)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "x"}, {"RANK": ""}, {"RANK": "-1"}, {"RANK": "8"}, {"WORLD_SIZE": "0"}, {"WORLD_SIZE": ""},
        {"RANK": "٣"}, {"WORLD_SIZE": "99999999999999"}, {"RANK": "1.5"},
    ],
)  # fmt: skip
def test_variables_that_make_no_rank_make_a_candidate(variables):
    """RANK is a common word: a chess program may export it, too."""
    assert role("python train.py", TORCHRUN | variables) == CANDIDATE


# -- claims


def claim(pid, environ):
    return dict(environ) | {CLAIM: f"{pid}:{fingerprint(environ)}"}


def test_a_ranks_subprocess_is_not_the_rank():
    """train.py calls `python eval.py`, which inherits RANK=3: two processes would be rank 3."""
    assert role("python eval.py", claim(PID - 1, TORCHRUN)) == CANDIDATE


def test_the_rank_itself_after_an_exec_is_still_the_rank():
    """torchrun starts a wrapper that execs the training: the same pid."""
    assert role("python train.py", claim(PID, TORCHRUN)) == RANK


@pytest.mark.parametrize(
    "fresh", [{"RANK": "4"}, {"LOCAL_RANK": "0"}, {"MASTER_PORT": "29501"}, {"TORCHELASTIC_RESTART_COUNT": "1"}]
)
def test_fresh_variables_of_a_launcher_override_an_inherited_mark(fresh):
    """A rank that itself runs torchrun: its ranks are ranks of their own."""
    assert role("python inner.py", claim(PID - 1, TORCHRUN) | fresh) == RANK


# -- names


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("python /home/ada/train.py", "train"),
        ("python -m pkg.train", "train"),
        ("python -m pkg.train.__main__", "train"),
        ("python /home/ada/job/__main__.py", "job"),
        ("python -c pass", "python"),
        ("python -X dev -m pkg", "pkg"),
        ("python ./run", "run"),
        ("python train.py +a=b hydra.run.dir=out", "train"),
        ("python -m pkg.train +a=b", "train"),
        ("python /env/ray/_private/workers/default_worker.py --node-ip-address=10.0.0.1", "python"),
    ],
)
def test_a_script_is_named_as_people_know_it(line, name):
    assert identify({}, line.split(), PID).script == name


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("python /env/bin/torchrun --nproc-per-node 4 train.py --lr 1", "train"),
        ("python /env/bin/torchrun --nproc-per-node=4 --standalone src/train.py", "train"),
        ("python /env/bin/torchrun --standalone --nnodes 1 train.py --config a.py", "train"),
        ("python /env/bin/torchrun -m pkg.train --lr 1", "train"),
        ("python -m torch.distributed.run --nproc_per_node 2 train.py", "train"),
        ("python -m torch.distributed.launch --use-env --nproc_per_node=2 train.py", "train"),
        ("python -m torch.distributed.run --nproc_per_node 2 --no-python ./run.sh", "run.sh"),
        ("python /env/bin/torchrun --nproc-per-node 2 -- train.py", "train"),
        ("python /env/bin/torchrun --rdzv-id train.py train.py", "train"),
        ("python /env/bin/accelerate launch --num_processes 4 train.py", "train"),
        ("python /env/bin/accelerate launch train.py", "train"),
        ("python /env/bin/deepspeed --num_gpus 2 train.py", "train"),
        ("python /env/bin/accelerate launch --multi_gpu --num_processes 2 script.py", "script"),
        (
            "python /env/bin/accelerate launch --multi-gpu --num_machines 1 --mixed_precision bf16 src/train.py +a=b",
            "train",
        ),
        ("python /env/bin/accelerate launch --use_fsdp --config_file fsdp.yaml -m pkg.train", "train"),
        ("python -m accelerate.commands.launch --cpu --num_processes 2 train.py", "train"),
        ("python -m accelerate.commands.accelerate_cli launch --multi_gpu train.py", "train"),
        ("python /env/bin/deepspeed --no_ssh --include localhost:0,1 train.py --deepspeed", "train"),
        ("python /env/bin/deepspeed --num_gpus=2 --module pkg.train", "train"),
        (
            "python -u -m deepspeed.launcher.launch --world_info=e30= --master_port=29500 --no_local_rank train.py",
            "train",
        ),
        ("python /env/bin/composer -n 2 train.py", "train"),
        ("python /env/bin/composer -v --nproc 2 -m pkg.train", "train"),
        ("python /env/bin/composer -n 2 -c python train.py", "train"),
        ("python /env/bin/horovodrun -np 2 -H localhost:2 python train.py", "train"),
        ("python /env/bin/fabric run --devices 2 train.py", "train"),
        ("python /env/bin/lightning run model --strategy ddp train.py", "train"),
        ("python /env/bin/torchrun --nproc-per-node 2 train.py +trainer.max_epochs=3 hydra.run.dir=out", "train"),
        ("python /env/bin/torchrun --standalone -m pkg.train.__main__", "train"),
        ("python /env/bin/torchrun --nproc-per-node 2 job/__main__.py", "job"),
        ("python /env/bin/torchrun --help", None),
        ("python /env/bin/torchrun", None),
    ],
)
def test_the_script_that_a_launcher_starts(line, name):
    assert launched_script(line.split()) == name


def parser_of_torchrun():
    return pytest.importorskip("torch.distributed.run").get_args_parser()


def parser_of_accelerate():
    return pytest.importorskip("accelerate.commands.launch").launch_command_parser()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("launcher", "parser"), [("torchrun", parser_of_torchrun), ("accelerate launch", parser_of_accelerate)]
)
def test_options_of_an_installed_launcher_take_the_values_that_its_own_parser_says(launcher, parser):
    """Each option alone in front of the script: with its value, or without where it is a flag."""
    wrong = []
    for action in parser()._actions:
        for name in action.option_strings:
            if name in ("-h", "--help") or not name.startswith("-"):
                continue
            value = [] if action.nargs == 0 else ["2"]
            words = ["python", *f"/env/bin/{launcher}".split(), name, *value, "pkg_train", "x"]
            if launched_script(words) != "pkg_train":
                wrong.append(name)

    assert wrong == []


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("", None),
        ("none", None),
        ("2c1d7a0e-9c4b-4f0e-8a57-0a3f7c1f6b11", None),
        ("llama-7b", "llama-7b"),
        ("1234", "1234"),
    ],
)
def test_only_a_run_id_that_a_person_chose_names_the_job(value, chosen):
    """torchrun --standalone makes a UUID up: nobody types that into `ddtop attach`."""
    assert chosen_run_id({"TORCHELASTIC_RUN_ID": value}) == chosen


def test_an_empty_command_line_is_nobody():
    """An embedded interpreter has no sys.orig_argv to speak of."""
    assert identify({}, [], PID).role == CANDIDATE
    assert identify({}, [""], PID).role == CANDIDATE
