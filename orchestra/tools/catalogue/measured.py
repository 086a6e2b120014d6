"""What is known of experts by asking them: right answers, dollars and seconds by topic, beside the catalogue."""

import hashlib
import json
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path

from pydantic import Field, ValidationError

from orchestra.errors import ConfigError
from orchestra.files import atomic
from orchestra.files.yaml import load_yaml
from orchestra.tools.catalogue.entry import Entry
from orchestra.types import Record, Seconds, Usage, Usd

MEASURE = "orchestra tools describe --all --write --cap-usd 20"
"""The command that measures the experts of the catalogue in force."""


class MeasuredTopic(Record):
    """How an expert fared on the questions of one topic."""

    asked: int = Field(gt=0)
    """Questions with a known outcome."""
    right: int = Field(ge=0)
    unsure: int = Field(default=0, ge=0)
    """Replies that said UNSURE."""
    usd: Usd = Decimal(0)
    """Mean dollars of a call."""
    seconds: Seconds = 0.0
    """Mean seconds of a call."""


class ExpertMeasurement(Record):
    """One expert, as measured."""

    entry: str
    """Hash of the catalogue entry that was asked: of another model, or another prompt, nothing is known."""
    on: date
    questions: str
    """Hash of the questions."""
    usage: Usage
    """Mean tokens of a call."""
    latency_s: Seconds
    """Mean seconds of a call."""
    topics: dict[str, MeasuredTopic] = Field(min_length=1)

    @property
    def strength(self) -> float:
        """Mean share of right answers over the topics."""
        return sum(one.right / one.asked for one in self.topics.values()) / len(self.topics)

    def skill(self, topic: str) -> float:
        """Share of right answers on a topic; on one that was not asked, the mean over all."""
        known = self.topics.get(topic)
        return self.strength if known is None else known.right / known.asked


def measured_file(catalogue: Path) -> Path:
    """Where the measurements of a catalogue are: tools.measured.yaml beside tools.yaml."""
    return catalogue.with_suffix(".measured.yaml")


def entry_hash(entry: Entry) -> str:
    """16 hexadecimal digits over what of an entry decides its replies."""
    return hashlib.sha256(entry.fingerprint.encode()).hexdigest()[:16]


def read_measured(catalogue: Path, entries: Mapping[str, Entry]) -> dict[str, ExpertMeasurement]:
    """The measurements of entries that are still what was asked, by name; raises `ConfigError` of one line."""
    file = measured_file(catalogue)
    if not file.is_file():
        return {}
    raw = load_yaml(file, if_missing="")
    try:
        found = {name: ExpertMeasurement.model_validate(value) for name, value in (raw or {}).items()}
    except (ValidationError, AttributeError) as error:
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "not a mapping"
        fix = f"measure again: {MEASURE}"
        raise ConfigError(f"no measurements: {said}", where=str(file), fix=fix) from None
    return {
        name: known for name, known in found.items() if name in entries and known.entry == entry_hash(entries[name])
    }


def write_measured(catalogue: Path, entries: Mapping[str, Entry], found: Mapping[str, ExpertMeasurement]) -> Path:
    """Add measurements to those of a catalogue that still hold; returns the file."""
    import yaml

    file, known = measured_file(catalogue), read_measured(catalogue, entries)
    merged = {name: json.loads(one.model_dump_json()) for name, one in sorted({**known, **found}.items())}
    head = "# What `orchestra tools describe` measured: mean dollars and seconds of a call, right answers by topic.\n"
    atomic.edit_bytes(file, (head + yaml.safe_dump(merged, sort_keys=False, width=120)).encode())
    return file
