"""What each process group is for: dp, fsdp, tp, pp, cp, ep.

Source: torch's description of the group (`mesh_tp`), the DeviceMesh objects that the program has
made, the globals of Megatron's, DeepSpeed's, vLLM's and SGLang's modules. All of it is Python text
and dictionaries: no tensor is read and nothing is imported. Caveat: torch gives the default group
to a dimension that has all ranks, and only the mesh shows that. Check: `print(mesh.mesh_dim_names,
[g.group_name for g in mesh.get_all_groups()])` in the program.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from ddtop.wire.meanings import COORDINATED, DEEPSPEED, MEGATRON, WHOLE, of_description, short

_MODULES = (
    ("megatron.core.parallel_state", {f"_{name}": word for name, word in MEGATRON.items()}),
    ("deepspeed.utils.groups", DEEPSPEED),
    ("vllm.distributed.parallel_state", COORDINATED),
    ("sglang.srt.distributed.parallel_state", COORDINATED),
)
_HELD_AS = ("device_group", "cpu_group")
"""vLLM and SGLang keep both groups of a dimension in a GroupCoordinator."""
MEANINGS_MAX = 8
NAME_CHARACTERS = 40


def meanings_of(world: Any, meshes: Iterable[Any]) -> dict[str, tuple[str, ...]]:
    """The meanings of each group by torch's name of it; groups without any are left out.

    `world`: `distributed_c10d._world`. `meshes`: in the order in which they were made. The first
    name that the program gave comes first, and a name without meaning ("world") last.
    """
    found: dict[str, list[str]] = {}
    for mesh in meshes:
        for dimension, name in _dimensions(mesh):
            _add(found, name, short(dimension))
    names: dict[int, str] = {}
    for group, name in world.pg_names.copy().items():
        names[id(group)] = str(name)
        _add(found, str(name), of_description(str(getattr(group, "group_desc", "") or "")))
    for module_name, words in _MODULES:
        module = sys.modules.get(module_name)
        if module is not None:
            _add_globals(found, names, vars(module), words)
    return {
        name: tuple(sorted(words, key=WHOLE.__contains__)[:MEANINGS_MAX])
        for name, words in found.items()
    }


def _dimensions(mesh: Any) -> list[tuple[str, str]]:
    """Each named dimension of a mesh and the name of its group; none if this rank is not in it."""
    names = getattr(mesh, "mesh_dim_names", None) or ()
    groups = getattr(mesh, "_dim_group_names", None)
    if groups is None:
        # Before torch 2.8: (tag, ranks, name of the group).
        infos = getattr(mesh, "_dim_group_infos", None) or ()
        groups = [info[2] if len(info) > 2 else None for info in infos]
    return [
        (str(name), str(group))
        for name, group in zip(names, groups, strict=False)
        if group is not None
    ]


def _add_globals(
    found: dict[str, list[str]],
    names: dict[int, str],
    values: dict[str, Any],
    words: dict[str, str],
) -> None:
    for variable, word in words.items():
        value = values.get(variable)
        held = list(value.values()) if isinstance(value, dict) else [value]
        for group in held:
            # By identity, because a group without this rank is None or a number, and others cannot
            # be hashed.
            for one in (group, *(getattr(group, part, None) for part in _HELD_AS)):
                if (name := names.get(id(one))) is not None:
                    _add(found, name, word)


def _add(found: dict[str, list[str]], name: str, word: str | None) -> None:
    if word is None:
        return
    words = found.setdefault(name, [])
    if word[:NAME_CHARACTERS] not in words:
        words.append(word[:NAME_CHARACTERS])
