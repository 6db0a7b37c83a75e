"""TRL's trainers that generate (GRPO, RLOO, distillation): what they do between two steps.

Source: `_generate` and `_calculate_rewards` of the trainer, and `sync_weights` of its vLLM, while
they run (TRL 1.16, trainer/grpo_trainer.py). The steps are those of the Trainer that they inherit
from. Check: the trainer's log of `profiling/Time taken`.
"""

from __future__ import annotations

from types import ModuleType

from ddtop.agent.frameworks.wrapping import as_phase

_NAME = "trl"
_PHASES = {"_generate": "generate", "_calculate_rewards": "reward", "sync_weights": "sync"}


def wrap(module: ModuleType) -> None:
    """Note the phases of each class of the module that has them."""
    for owner in list(vars(module).values()):
        # Not the classes that it imports: their modules have rows of their own.
        if isinstance(owner, type) and owner.__module__ == module.__name__:
            for name in _PHASES.keys() & vars(owner):
                as_phase(owner, name, _PHASES[name], _NAME)
