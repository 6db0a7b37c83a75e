"""The objects in the page about Kubernetes are what Kubernetes' own schemas allow.

By hand: `pip install kubernetes-validate`, which brings the schemas.
"""

import re
from pathlib import Path

import pytest

kubernetes_validate = pytest.importorskip("kubernetes_validate")
yaml = pytest.importorskip("yaml")

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "kubernetes.md"


def test_the_service_and_the_job_are_valid():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    objects = [one for block in blocks for one in yaml.safe_load_all(block) if "kind" in one]

    assert [one["kind"] for one in objects] == ["Service", "Job"]
    for one in objects:
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


def test_a_misspelt_field_would_be_found():
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"ports": 1}}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)
