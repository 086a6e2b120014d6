"""Files of deployment fit their published schemas, and name what the program has."""

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestra.config.deploy import VllmServer
from orchestra.serving.releases.vllm import SERVED_NAME, command
from tests.support.worlds import ROOT

DEPLOY = ROOT / "deploy"


def kubernetes() -> list[dict[str, Any]]:
    found = []
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        found += [one for one in yaml.safe_load_all(file.read_text(encoding="utf-8")) if one]
    return found


@pytest.mark.parametrize("resource", kubernetes(), ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_kubernetes_takes_every_resource(resource: dict[str, Any]) -> None:
    import kubernetes_validate

    kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def test_compose_fits_its_specification() -> None:
    import check_jsonschema
    import jsonschema

    folder = Path(check_jsonschema.__file__).parent / "builtin_schemas/vendor"
    (schema,) = [file for file in folder.iterdir() if "compose" in file.name and file.suffix == ".json"]
    jsonschema.Draft7Validator(yaml.safe_load(schema.read_text(encoding="utf-8"))).validate(compose())


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "docker-compose.yaml").read_text(encoding="utf-8"))
    return found


def containers(name: str) -> list[list[str]]:
    """The arguments of every container of that name in Kubernetes."""
    pods = [one["spec"]["template"]["spec"] for one in kubernetes() if one["kind"] == "Deployment"]
    return [container["args"] for pod in pods for container in pod["containers"] if container["name"] == name]


def arguments() -> list[list[str]]:
    """Of every container that runs our gateway."""
    entry = re.findall(r'"([^"]+)"', (DEPLOY / "Dockerfile").read_text(encoding="utf-8").partition("ENTRYPOINT")[2])
    return [entry + args for args in (*containers("gateway"), compose()["services"]["gateway"]["command"])]


def test_the_gateway_knows_its_options() -> None:
    source = (ROOT / "orchestra/serving/__main__.py").read_text(encoding="utf-8")
    known = set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', source))
    used = {word for words in arguments() for word in words if word.startswith("--")}
    assert used and used <= known


def test_prometheus_may_ask_the_gateway_by_its_name_in_compose() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"][0]
    ((target,),) = [one["targets"] for one in scraped["static_configs"]]
    words = compose()["services"]["gateway"]["command"]
    allowed = [words[place + 1] for place, word in enumerate(words) if word == "--allow-host"]
    assert scraped["job_name"] == "gateway" and target.partition(":")[0] in allowed


def test_model_servers_have_the_options_of_a_release() -> None:
    """What the gateway relies on: the served name, counts of cached tokens, an end that loses no request."""
    ours = command(Path("python"), Path("m"), 1, 2, VllmServer())
    for words in (*containers("vllm"), compose()["services"]["vllm"]["command"]):
        assert words[words.index("--served-model-name") + 1] == SERVED_NAME
        for option in ("--enable-prompt-tokens-details", "--shutdown-timeout"):
            assert option in words and option in ours


def test_nothing_is_open_beyond_this_machine_and_no_secret_is_written_down() -> None:
    services = compose()["services"]
    # The image's own user could not open the private files of a workspace.
    assert services["gateway"]["user"].startswith("${OWNER:?")
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
    for file in DEPLOY.rglob("*"):
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            assert not re.search(r"(?i)(password|key|token)\s*[:=]\s*['\"]?[A-Za-z0-9+/]{12,}", text), file


def test_the_unit_starts_the_gateway() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign, assignment]
    unit.read(DEPLOY / "systemd/orchestra-gateway.service")
    assert "-m orchestra.serving --root . --port 8800" in unit["Service"]["ExecStart"]
    assert unit["Service"]["Restart"] == "always" and unit["Install"]["WantedBy"] == "default.target"


def test_prometheus_reads_our_rules() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text(encoding="utf-8"))
    assert config["rule_files"] == ["rules.yaml"]
    mounted = " ".join(compose()["services"]["prometheus"]["volumes"])
    assert "monitoring/prometheus/rules.yaml:/etc/prometheus/rules.yaml" in mounted
    jobs = [target for job in config["scrape_configs"] for one in job["static_configs"] for target in one["targets"]]
    targets = [target.partition(":")[0] for target in jobs]
    assert set(targets) <= set(compose()["services"])
