"""Which code decides a result: the one list behind DVC's stages, the score, the gateway and a data set's shards."""

import hashlib
from pathlib import Path
from typing import Literal

import orchestra

Result = Literal["synthesize", "validate", "sft", "grpo", "evaluate", "score", "gateway"]

EPISODE = (
    "orchestra/accounting",
    "orchestra/domains",
    "orchestra/files/jsonl.py",
    "orchestra/rewards/answers.py",
    "orchestra/rewards/judge.py",
    "orchestra/rewards/outcome.py",
    "orchestra/rewards/rubrics.py",
    "orchestra/rollout",
    "orchestra/text.py",
    "orchestra/tools",
    "orchestra/types.py",
)
"""Everything that takes part in an episode."""
TRAINING = (
    *EPISODE,
    "orchestra/files/checkpoint.py",
    "orchestra/files/examples.py",
    "orchestra/training/choices.py",
    "orchestra/training/compute",
    "orchestra/training/distributed.py",
    "orchestra/training/optimizer.py",
    "orchestra/training/resume.py",
    "orchestra/training/teacher.py",
    "tasks/platform/checkpoints.py",
)
"""What both trainings use, so that an edit of GRPO or of a reward alone leaves SFT as it is."""
SERVER = ("orchestra/serving/engines", "orchestra/serving/releases/vllm.py")
"""What plays a model through vLLM."""
CODE: dict[Result, tuple[str, ...]] = {
    "synthesize": (
        *EPISODE,
        "orchestra/files/tables.py",
        "orchestra/provenance.py",
        "orchestra/synthesis",
        "orchestra/validation",
        "tasks/synthesize.py",
    ),
    "validate": (
        *EPISODE,
        "orchestra/files/tables.py",
        "orchestra/provenance.py",
        "orchestra/validation",
        "tasks/platform/expectations.py",
        "tasks/platform/rules.py",
        "tasks/validate.py",
    ),
    "sft": (*TRAINING, "orchestra/training/sft.py", "tasks/sft.py"),
    "grpo": (
        *TRAINING,
        *SERVER,
        "orchestra/rewards",
        "orchestra/synthesis/preferences",
        "orchestra/training/grpo",
        "tasks/grpo.py",
    ),
    "evaluate": (
        *EPISODE,
        "orchestra/evaluation",
        "orchestra/files/checkpoint.py",
        *SERVER,
        "orchestra/statistics",
        "orchestra/synthesis/questions/topic_words.py",
        "orchestra/training/grpo/branching/points.py",
        "orchestra/training/choices.py",
        "orchestra/training/teacher.py",
        "tasks/evaluate.py",
    ),
    "score": EPISODE,
    "gateway": (
        *EPISODE,
        "orchestra/config",
        "orchestra/errors.py",
        "orchestra/files/checkpoint.py",
        "orchestra/serving",
        "orchestra/statistics/sequential.py",
        "orchestra/synthesis/questions/beyond.py",
        "orchestra/synthesis/questions/beyond_words.py",
        "orchestra/synthesis/questions/surface.py",
    ),
}
"""Files and folders by result, relative to the repository. dvc.yaml names those of each stage; a contract test compares
both with the imports."""

ROOT = Path(orchestra.__file__).parents[1]


def code_files(result: Result) -> list[Path]:
    """The library's Python files that decide the result, sorted by path."""
    parts = [ROOT / part for part in CODE[result] if part.startswith("orchestra/")]
    found = {file for part in parts for file in (part.rglob("*.py") if part.is_dir() else [part])}
    return sorted(found)


def code_hash(result: Result) -> str:
    """SHA-256 over the paths and contents of `code_files`."""
    digest = hashlib.sha256()
    for file in code_files(result):
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()
