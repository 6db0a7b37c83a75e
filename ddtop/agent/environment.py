"""The parts of the environment and the command line that ddtop sends: those that matter to a
distributed job, bounded and without secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddtop.launch import every_launcher
from ddtop.redaction import redacted_variable, redacted_words

VALUE_CHARACTERS, ARGUMENTS = 200, 40
VARIABLES_MAX = 128
"""Kubernetes sets seven variables for each service of the namespace, whatever its name is: a
service `torch-0` makes TORCH_0_SERVICE_HOST and others."""

# Variables that say how the ranks find each other, on which hosts they are and what started them.
# From these the relay decides whether there are other hosts.
_FIRST = re.compile(
    f"^({'|'.join(launcher.sent for launcher in every_launcher() if launcher.sent)}"
    "|DDTOP_HUB|(NCCL|GLOO|TP)_SOCKET_IFNAME)$"
)
_OTHERS = re.compile(
    r"^(MASTER_|LOCAL_|GROUP_|ROLE_|TORCH|NCCL_|GLOO_|TP_SOCKET|OMP_|MKL_|KMP_|CUDA_|HIP_|ROCR_"
    r"|HSA_|NVIDIA_|PYTHON(HASHSEED|UNBUFFERED|OPTIMIZE)"
    r"|CONDA_DEFAULT_ENV$|VIRTUAL_ENV|TOKENIZERS_PARALLELISM$|TMPDIR$)"
)


def redacted_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter to a distributed job, with secrets replaced (`ddtop.redaction`).

    If there are too many, those that say where the ranks are have priority.
    """
    first = [name for name in environ if _FIRST.match(name)]
    rest = [name for name in environ if _OTHERS.match(name) and name not in first]
    shown = (*first, *rest)[:VARIABLES_MAX]
    # The program may remove a variable meanwhile.
    found = {name: value for name in shown if (value := environ.get(name)) is not None}
    return {name: redacted_variable(name, value, VALUE_CHARACTERS) for name, value in found.items()}


def redacted_argv(argv: list[str]) -> tuple[str, ...]:
    """The command line without secrets: the value of `--token=X` and the word after `--token` are
    replaced.
    """
    return redacted_words(argv[:ARGUMENTS], VALUE_CHARACTERS)
