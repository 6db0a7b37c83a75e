"""Which script a launcher's command line starts."""

import pytest

from ddtop.launch.command_line import launched_script


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
            (
                "python /env/bin/accelerate launch --multi-gpu --num_machines 1 --mixed_precision"
                " bf16 src/train.py +a=b"
            ),
            "train",
        ),
        (
            "python /env/bin/accelerate launch --use_fsdp --config_file fsdp.yaml -m pkg.train",
            "train",
        ),
        ("python -m accelerate.commands.launch --cpu --num_processes 2 train.py", "train"),
        ("python -m accelerate.commands.accelerate_cli launch --multi_gpu train.py", "train"),
        (
            "python /env/bin/deepspeed --no_ssh --include localhost:0,1 train.py --deepspeed",
            "train",
        ),
        ("python /env/bin/deepspeed --num_gpus=2 --module pkg.train", "train"),
        (
            (
                "python -u -m deepspeed.launcher.launch --world_info=e30= --master_port=29500"
                " --no_local_rank train.py"
            ),
            "train",
        ),
        ("python /env/bin/composer -n 2 train.py", "train"),
        ("python /env/bin/composer -v --nproc 2 -m pkg.train", "train"),
        ("python /env/bin/composer -n 2 -c python train.py", "train"),
        ("python /env/bin/horovodrun -np 2 -H localhost:2 python train.py", "train"),
        ("python /env/bin/fabric run --devices 2 train.py", "train"),
        ("python /env/bin/lightning run model --strategy ddp train.py", "train"),
        (
            (
                "python /env/bin/torchrun --nproc-per-node 2 train.py +trainer.max_epochs=3"
                " hydra.run.dir=out"
            ),
            "train",
        ),
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


@pytest.mark.parametrize(
    ("launcher", "parser"),
    [("torchrun", parser_of_torchrun), ("accelerate launch", parser_of_accelerate)],
)
def test_options_of_an_installed_launcher_take_the_values_that_its_own_parser_says(
    launcher, parser
):
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
