"""`python -m zoo.false_alarms.record`: make the recordings anew.

Each shape of `programs/light_torch.py` runs for a while with four ranks that work as hard as they
can, and what its relay kept is packed into `recordings`. Hugging Face's Trainer and Lightning's are
recorded too where they are installed (`pip install ddtop[frameworks]`).
"""

from __future__ import annotations

import argparse
import sys
from importlib import util
from pathlib import Path

from tools.benchmarks.stage import Stage
from tools.benchmarks.viewer import follow
from zoo.false_alarms.real import PROGRAMS, SHAPES, START_S, TORCH
from zoo.false_alarms.recording import FOLDER, pack

FRAMEWORKS = Path(__file__).parents[1] / "frameworks" / "programs"
OF_FRAMEWORKS = {"hf_trainer": "transformers", "lightning_ddp": "lightning"}
SECONDS, STEPS = 80.0, 700
END_S = 120.0


def record(name: str, command: list[str], into: Path, **variables: str) -> None:
    """Run it under torchrun and keep what its relay kept."""
    ranks = "2" if name == "lightning_ddp" else "4"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
    with Stage(name.replace("_", "-")) as stage:
        environment = stage.environment(True, **variables)
        stage.start([sys.executable, *launcher, *command], environment, stage.output(0))
        entry = stage.entry(1, START_S)
        after = 0
        for snapshot, _ in follow(entry, SECONDS + START_S + END_S):
            after += snapshot.ended is not None
            if after > 4:
                break
        (journal,) = (stage.home / "state").glob("*.journal")
        pack(journal, into / f"{name}.xz")
        print(f"{name}: {(into / f'{name}.xz').stat().st_size} bytes", flush=True)


def main() -> None:
    """Record all shapes, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m zoo.false_alarms.record", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--into", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    options.into.mkdir(exist_ok=True)
    there = [name for name, package in OF_FRAMEWORKS.items() if util.find_spec(package)]
    for name in options.names or [*SHAPES[TORCH], *there]:
        if name in OF_FRAMEWORKS:
            program = str(FRAMEWORKS / f"{name}.py")
            record(name, [program], options.into, STEPS=str(STEPS))
        else:
            words = [str(PROGRAMS / "light_torch.py"), name, str(options.seed), str(SECONDS)]
            record(name, words, options.into, LIGHT="0")


if __name__ == "__main__":
    main()
