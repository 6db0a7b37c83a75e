"""The result of a training is the same, bit by bit, with and without ddtop.

`python -m zoo.frameworks --bits` compares the programs of all frameworks that are installed.
"""

import pytest

from zoo.frameworks.cases import CASES
from zoo.frameworks.running import same_bits


@pytest.mark.job
@pytest.mark.torch
def test_a_training_with_fsdp2_ends_with_the_same_weights_with_and_without_ddtop():
    (case,) = [one for one in CASES if one.name == "FSDP2"]

    assert same_bits(case) == "same"
