"""The scene of the attacks. One scene serves a whole file, and each attack starts with the relay as
it was before the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.scene import Scene
from tests.runtime_folder import runtime_folder


@pytest.fixture(scope="module")
def relay_of_the_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A relay with a rank and a viewer. At the end the relay must still live, and exit well."""
    with runtime_folder() as runtime, pytest.MonkeyPatch.context() as patch:
        patch.delenv("DDTOP_KEY", raising=False)
        patch.setenv("DDTOP_STATE", str(tmp_path_factory.mktemp("state")))
        patch.setenv("DDTOP_RUNTIME", str(runtime))
        found = Scene()
        yield found
        found.close()


@pytest.fixture
def scene(relay_of_the_file: Scene) -> Iterator[Scene]:
    """The scene, after the previous attack is over."""
    yield relay_of_the_file
    relay_of_the_file.over()
