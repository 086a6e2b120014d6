"""Keys of params.yaml that older versions had, and what is said of each key that the schema does not know."""

from collections.abc import Sequence

from orchestra.errors import ConfigError

RENAMED = {
    "grpo.band": "grpo.difficulty_range",
    "grpo.deciding": "grpo.top_entropy_quantile",
    "grpo.measured": "grpo.difficulty_file",
}
"""The name now; the values mean what they meant."""
HABITS = "sft.teacher.strongest, sft.teacher.stop and sft.teacher.ask_on"
REPLACED = {
    "promote.accuracy_gain_margin": "promote.accuracy_gain and promote.error_level",
    "promote.champion_accuracy_margin": "promote.accuracy_margin",
    "promote.champion_cost_ratio": "promote.cost_margin",
    "promote.min_accuracy_gain": "promote.accuracy_gain",
    "sft.teacher_skill": HABITS,
    **{
        f"sft.teacher.{habit}": HABITS
        for habit in (
            *("bias", "careless", "follow_preference", "heed"),
            *("patience", "random_choice", "sense", "weigh_value"),
        )
    },
}
"""The keys in place of one that is gone; their values mean something else."""
MOST = 8
"""Keys that one line names."""


def unknown_keys(keys: Sequence[str], where: str) -> ConfigError:
    """The one line about all of them."""
    said, fixes = [], []
    for key in keys[:MOST]:
        if key in RENAMED:
            said.append(f"{key} is called {RENAMED[key]} now")
            fixes.append("write the new name")
        elif key in REPLACED:
            said.append(f"{key} is gone; in its place: {REPLACED[key]}")
            fixes.append("set what is in its place: docs/reference/parameters.md")
        else:
            said.append(f"unknown key {key}")
            fixes.append("remove it or check its spelling")
    if len(keys) > MOST:
        said.append(f"{len(keys) - MOST} more")
    return ConfigError(", ".join(said), where=where, fix="; ".join(dict.fromkeys(fixes)))
