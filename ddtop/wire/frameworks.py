"""Training frameworks whose frames stand between the program and torch, by their packages.

Only these are named in sentences: a caller such as `click` says nothing about a training.
"""

from __future__ import annotations

FRAMEWORKS = {
    "accelerate": "Accelerate",
    "colossalai": "ColossalAI",
    "composer": "Composer",
    "deepspeed": "DeepSpeed",
    "detectron2": "Detectron2",
    "fastai": "fastai",
    "ignite": "Ignite",
    "keras": "Keras",
    "lightning": "Lightning",
    "lightning_fabric": "Fabric",
    "megatron": "Megatron",
    "mmengine": "MMEngine",
    "monai": "MONAI",
    "monarch": "Monarch",
    "nemo": "NeMo",
    "peft": "PEFT",
    "pytorch_lightning": "Lightning",
    "ray": "Ray",
    "sentence_transformers": "Sentence Transformers",
    "sglang": "SGLang",
    "torchft": "torchft",
    "torchrec": "TorchRec",
    "torchtitan": "torchtitan",
    "torchtune": "torchtune",
    "transformers": "Transformers",
    "trl": "TRL",
    "ultralytics": "Ultralytics",
    "vllm": "vLLM",
}
_PACKAGES = ("/site-packages/", "/dist-packages/")


def framework_of(file: str) -> str | None:
    """The package of a framework that this file belongs to, None for any other file."""
    for mark in _PACKAGES:
        _, found, rest = file.rpartition(mark)
        if found:
            package = rest.partition("/")[0].removesuffix(".py")
            return package if package in FRAMEWORKS else None
    return None
