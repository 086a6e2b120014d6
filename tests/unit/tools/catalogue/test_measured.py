"""Measurements of experts: read where a simulated skill was, and of no use once the entry is another."""

import shutil
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.errors import ConfigError
from orchestra.tools.catalogue.catalogue import Catalogue, catalogue_files
from orchestra.tools.catalogue.measured import (
    ExpertMeasurement,
    MeasuredTopic,
    entry_hash,
    measured_file,
    write_measured,
)
from orchestra.types import ToolKind, Usage
from tests.support.worlds import ROOT

DAY = "2026-08-06"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "data/catalogue", tmp_path / "catalogue"))


def load(folder: Path, name: str = "real") -> Catalogue:
    return Catalogue.load(folder / f"{name}.yaml", folder / "prices.yaml", DAY)


def known(catalogue: Catalogue, name: str, **right: int) -> ExpertMeasurement:
    topics = {topic: MeasuredTopic(asked=10, right=count) for topic, count in right.items()}
    return ExpertMeasurement(
        entry=entry_hash(catalogue.entry(name)), on=date(2026, 8, 6), questions="q", topics=topics,
        usage=Usage(input_tokens=100, output_tokens=1000), latency_s=7.5,
    )  # fmt: skip


def test_the_real_catalogue_takes_basic_tools_over_and_no_stand_in(folder: Path) -> None:
    real, simulated = load(folder), load(folder, "tools")
    assert {"calculator", "search", "python", "web_search"} <= set(real.names(ToolKind.BASIC))
    assert simulated.all_simulated and not real.all_simulated
    experts = real.names(ToolKind.EXPERT)
    assert len(experts) == 14 and all(real.entry(name).simulated is None for name in experts)
    assert all(real.entry(name).base_url_env and real.entry(name).api_key_env for name in experts)
    assert real.topics == simulated.topics and real.domain_price == simulated.domain_price
    assert [file.name for file in catalogue_files(folder / "real.yaml")] == ["tools.yaml", "real.yaml"]


def test_every_price_of_a_real_expert_is_dated_and_sourced(folder: Path) -> None:
    real = load(folder)
    assert real.book is not None
    for name in real.names(ToolKind.EXPERT):
        row = real.book.row(real.entry(name).price, date(2026, 8, 6))
        assert row is not None and row.source and not row.source.startswith("assumed"), name


def test_a_measured_expert_is_what_was_measured(folder: Path) -> None:
    real = load(folder)
    assert "gpt-5" in real.unmeasured() and real.strength("gpt-5") == 0
    file = write_measured(folder / "real.yaml", real.entries, {"gpt-5": known(real, "gpt-5", math=8, law=4)})
    assert file == measured_file(folder / "real.yaml") and file in catalogue_files(folder / "real.yaml")
    again = load(folder)
    assert "gpt-5" not in again.unmeasured() and "qwen3-32b" in again.unmeasured()
    assert (again.skill("gpt-5", "math"), again.skill("gpt-5", "law")) == (0.8, 0.4)
    assert again.strength("gpt-5") == again.skill("gpt-5", "another topic") == pytest.approx(0.6)
    spec = again.spec("gpt-5")
    assert spec.latency_s == 7.5 and spec.call_usd == Decimal("1.25") * 100 / 10**6 + Decimal(10) * 1000 / 10**6


def test_a_simulated_expert_is_measured_too(folder: Path) -> None:
    simulated = load(folder, "tools")
    write_measured(folder / "tools.yaml", simulated.entries, {"gpt-5": known(simulated, "gpt-5", math=1)})
    assert load(folder, "tools").skill("gpt-5", "math") == 0.1 != simulated.skill("gpt-5", "math")


def test_measurements_go_where_a_link_leads(folder: Path, tmp_path: Path) -> None:
    simulated, kept = load(folder, "tools"), tmp_path / "kept.yaml"
    kept.write_text("")
    file = measured_file(folder / "tools.yaml")
    file.symlink_to(kept)
    write_measured(folder / "tools.yaml", simulated.entries, {"gpt-5": known(simulated, "gpt-5", math=1)})
    assert file.is_symlink() and "gpt-5" in kept.read_text()


def test_of_another_model_nothing_is_known(folder: Path) -> None:
    real = load(folder)
    write_measured(folder / "real.yaml", real.entries, {"gpt-5-mini": known(real, "gpt-5-mini", math=9)})
    file = folder / "real.yaml"
    file.write_text(file.read_text().replace("endpoint_model: gpt-5-mini\n", "endpoint_model: gpt-6-mini\n"))
    assert "gpt-5-mini" in load(folder).unmeasured()


def test_a_description_leaves_the_measurement_in_force(folder: Path) -> None:
    real = load(folder)
    write_measured(folder / "real.yaml", real.entries, {"gpt-5": known(real, "gpt-5", math=9)})
    file = folder / "real.yaml"
    file.write_text(file.read_text().replace("strong in every subject", "math and law"))
    assert load(folder).skill("gpt-5", "math") == 0.9


@pytest.mark.parametrize("text", ["gpt-5: {asked: 3}", "- one", "gpt-5: 7"])
def test_a_damaged_file_is_one_line(folder: Path, text: str) -> None:
    measured_file(folder / "real.yaml").write_text(text)
    with pytest.raises(ConfigError, match="no measurements") as caught:
        load(folder)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("extends: ../tools.yaml", "extends"),
        ("extends: real.yaml", "extends"),
        ("extends: none.yaml", "no such file"),
        ("extends: tools.yaml\ntools: [a]", "tools is no mapping"),
        ("extends: tools.yaml\nmcp_servers: [a]", "mcp_servers is no mapping"),
    ],
)
def test_what_cannot_be_extended_is_one_line(folder: Path, text: str, says: str) -> None:
    (folder / "real.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        load(folder)
