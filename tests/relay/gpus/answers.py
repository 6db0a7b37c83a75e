"""Recorded answers of NCCL's RAS service."""

from pathlib import Path

ANSWERS = Path(__file__).with_name("ras_answers")


ALL = sorted(path.relative_to(ANSWERS).as_posix() for path in ANSWERS.glob("*/*.*"))
