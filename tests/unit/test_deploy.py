"""The files in deploy/ name existing options, and match the Dockerfile and the defaults."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rlproxy.config import config, loader, urls

from tests import documents
from tests.harness import DEADLINE_S, ROOT

DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "deployment.md").read_text()
OBSERVABILITY = (ROOT / "docs" / "observability.md").read_text()
UNIT = (DEPLOY / "rlproxy.service").read_text()
SETTINGS = (DEPLOY / "rlproxy.env").read_text()
COMPOSE = (DEPLOY / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
MANIFESTS = {path.name: path for path in sorted((DEPLOY / "kubernetes").iterdir())}
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
OPTIONS = {option.variable: option for option in config.OPTIONS}
DEFAULT = loader.load(loader.parser().parse_args([]), {})
HEALTH = ["rlproxy", "health"]
PASSWORD = "s3cret"


def documents_of(name: str) -> list[Any]:
    return list(yaml.safe_load_all(MANIFESTS[name].read_text()))


def compose() -> dict[str, Any]:
    """The services of the compose file, with the password inserted."""
    text = re.sub(r"\$\{REDIS_PASSWORD[^}]*\}", PASSWORD, COMPOSE)
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def containers(name: str) -> Iterator[dict[str, Any]]:
    """The proxy's containers in a manifest."""
    for document in documents_of(name):
        if document["kind"] == "Deployment":
            spec = document["spec"]["template"]["spec"]
            for container in [*spec.get("initContainers", []), *spec["containers"]]:
                if container["name"] == "rlproxy":
                    yield container


def accepted(variables: dict[str, str]) -> config.Config:
    """The configuration from these variables; fails if one is invalid or unknown."""
    return loader.load(loader.parser().parse_args([]), variables)


def port() -> int:
    """The port that the Dockerfile exposes."""
    found = re.search(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)
    assert found is not None
    return int(found[1])


def seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text[:-1])


# -- all files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", [*FILES, ROOT / "docs" / "deployment.md"], ids=lambda path: path.name
)
def test_every_variable_and_option_exists(path: Path) -> None:
    service = {"RLPROXY_PORT", "RLPROXY_SERVICE_HOST"}  # set by Kubernetes
    for variable in re.findall(r"\bRLPROXY_[A-Z][A-Z_]+", path.read_text()):
        assert variable in {*OPTIONS, *service, "RLPROXY_CONFIG", "RLPROXY_COMPILE"}, variable
    flags = {option.flag for option in config.OPTIONS} | {"--config", "--check-config"}
    flags |= {"--save", "--profile", "--build", "--detach"}  # Redis' and Docker's
    text = documents.outside(path)  # blocks contain other programs
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
        assert flag in flags or path.name == "docker-compose.yml", flag


def test_page_shows_every_file() -> None:
    for path in FILES:
        assert f"](../{path.relative_to(ROOT)})" in PAGE + OBSERVABILITY


def test_commands_on_the_page_name_existing_files() -> None:
    """Paths of the project exist, and those of the machine are in the unit."""
    blocks = "".join(block.text for block in documents.blocks(ROOT / "docs" / "deployment.md"))
    named = re.findall(r"(?<![\w/])deploy/[\w./-]+", blocks)
    assert len(named) >= 4
    for name in named:
        assert (ROOT / name).exists(), name
    assert "/opt/rlproxy/bin/pip install ." in blocks
    assert "\nExecStart=/opt/rlproxy/bin/rlproxy\n" in UNIT
    assert "install -D -m 600 deploy/rlproxy.env /etc/rlproxy/env" in blocks
    assert "\nEnvironmentFile=/etc/rlproxy/env\n" in UNIT
    assert "useradd --system --no-create-home rlproxy" in blocks
    assert "\nUser=rlproxy\n" in UNIT


def test_image_requires_an_upstream() -> None:
    """This includes `docker run -it`, which is a terminal."""
    variables = dict(re.findall(r"^ENV (RLPROXY_\w+)=(.*)$", DOCKERFILE, re.MULTILINE))
    variables.pop("RLPROXY_COMPILE")  # of the build stage
    with pytest.raises(config.ConfigError) as caught:
        accepted(variables)
    assert caught.value.mistakes == (loader.NO_UPSTREAM,)
    assert accepted({**variables, "RLPROXY_UPSTREAM": "redis://h"}).listen[0].host == "0.0.0.0"


# -- systemd ---------------------------------------------------------------------------------------


def test_settings_of_the_unit_are_accepted(tmp_path: Path) -> None:
    lines = [line.lstrip("#") for line in SETTINGS.splitlines() if "=" in line]
    settings = dict(line.split("=", 1) for line in lines)
    assert settings["RLPROXY_CONFIG"] == "/etc/rlproxy/rlproxy.toml"
    file = tmp_path / "rlproxy.toml"
    file.write_text("[policies]\nlogin = '5 60'\n")
    made = accepted({**settings, "RLPROXY_CONFIG": str(file)})
    assert made.upstream.password == "PASSWORD"
    assert made.listen == DEFAULT.listen
    assert len(made.policies) == 1
    assert len(lines) == 6


def test_unit_waits_longer_than_the_proxy_drains() -> None:
    found = re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert found is not None
    assert int(found[1]) > DEFAULT.drain_timeout_s
    limit = re.search(r"^LimitNOFILE=(\d+)$", UNIT, re.MULTILINE)
    assert limit is not None
    assert int(limit[1]) > 2 * DEFAULT.max_clients
    assert 2 * 32_000 < int(limit[1]) <= 2 * 33_000  # as documented on the page


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, for a program that exists here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine")
    made = tmp_path / "rlproxy.service"
    made.write_text(UNIT.replace("/opt/rlproxy/bin/rlproxy", "/bin/true"))
    return made


def analyzed(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, timeout=DEADLINE_S
    )


def test_systemd_verifies_the_unit(unit: Path) -> None:
    done = analyzed("verify", str(unit))
    about_it = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, done.stdout, about_it) == (0, "", [])  # others may have warnings


def test_exposure_of_the_unit_equals_the_page(unit: Path) -> None:
    done = analyzed("security", "--offline=yes", "--no-pager", str(unit))
    found = re.search(r"exposure level for rlproxy.service: ([\d.]+) (\w+)", done.stdout)
    if found is None:
        pytest.skip(f"this systemd rates no unit offline: {done.stderr}")
    assert found[2] == "OK"
    documented = re.search(r"rates its exposure ([\d.]+), OK", PAGE)
    assert documented is not None
    assert abs(float(found[1]) - float(documented[1])) <= 0.3  # other versions check other settings


# -- Docker Compose --------------------------------------------------------------------------------


def test_compose_file_runs_the_proxy_in_front_of_its_redis() -> None:
    services = compose()
    made = accepted(services["rlproxy"]["environment"])
    assert made.upstream.address is not None
    assert made.upstream.address.host in services
    assert made.upstream.password == PASSWORD
    assert services["rlproxy"]["ports"] == [f"127.0.0.1:{port()}:{port()}"]
    assert "ports" not in services["redis"]
    assert (DEPLOY / services["rlproxy"]["build"] / "Dockerfile").exists()
    assert seconds(services["rlproxy"]["stop_grace_period"]) > DEFAULT.drain_timeout_s
    assert services["rlproxy"]["ulimits"]["nofile"] > 2 * DEFAULT.max_clients


def test_only_the_proxy_reaches_redis() -> None:
    networks = yaml.safe_load(COMPOSE)["networks"]
    assert networks["redis"] == {"internal": True}
    services = compose()
    assert services["redis"]["networks"] == ["redis"]
    reach = [name for name, each in services.items() if "redis" in each.get("networks", [])]
    assert reach == ["redis", "rlproxy"]


def test_published_ports_are_loopback_only() -> None:
    services = compose()
    published = [port for each in services.values() for port in each.get("ports", [])]
    assert all(each.startswith("127.0.0.1:") for each in published)
    admin = accepted(services["rlproxy"]["environment"]).admin
    assert admin is not None
    assert (admin.host, admin.path) == ("0.0.0.0", "")
    assert not [each for each in published if str(admin.port) in each]


def test_every_service_has_a_version_and_a_health_check() -> None:
    for name, service in compose().items():
        assert service["restart"] == "unless-stopped"
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        if name == "rlproxy":  # built here, with the health check of its Dockerfile
            assert re.search(r"^HEALTHCHECK ", DOCKERFILE, re.MULTILINE)
            continue
        assert re.fullmatch(r"[a-z/]+:v?\d+\.[\d.]+", service["image"]), name
        assert "healthcheck" in service or service["profiles"] == ["demo"], name


def test_mounted_files_exist_and_name_the_services() -> None:
    services = compose()
    mounted: dict[str, Path] = {}
    for service in services.values():
        for mount in service.get("volumes", []):
            here, there, *_ = mount.split(":")
            if here.startswith("."):
                assert mount.endswith(":ro")
                assert (DEPLOY / here).exists(), mount
                mounted[there] = DEPLOY / here
            else:
                assert here in yaml.safe_load(COMPOSE)["volumes"]
    settings = yaml.safe_load(mounted["/etc/prometheus/prometheus.yml"].read_text())
    assert "--config.file=/etc/prometheus/prometheus.yml" in services["prometheus"]["command"]
    assert all(name in mounted for name in settings["rule_files"])
    (job,) = settings["scrape_configs"]
    admin = accepted(services["rlproxy"]["environment"]).admin
    assert admin is not None
    assert job["static_configs"] == [{"targets": [f"rlproxy:{admin.port}"]}]

    provisioning = mounted["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == settings["global"]["scrape_interval"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "rlproxy.yml").read_text())[
        "providers"
    ]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert str(Path(home).parent) == provider["options"]["path"]
    assert mounted[home].name == "rlproxy.json"


def test_grafana_is_read_only() -> None:
    environment = compose()["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
    assert all(isinstance(value, str) for value in environment.values())


def test_compose_file_satisfies_its_schema() -> None:
    spec = pytest.importorskip("compose_spec").PyCompose
    names = {"redis", "rlproxy", "prometheus", "grafana", "traffic"}
    assert set(spec.from_yaml(COMPOSE).service_names()) == names
    with pytest.raises(ValueError, match="stop_grace_perod"):
        spec.from_yaml(COMPOSE.replace("stop_grace_period", "stop_grace_perod"))


# -- Kubernetes ------------------------------------------------------------------------------------


def test_image_has_the_manifests_probe() -> None:
    found = re.search(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert found is not None
    assert yaml.safe_load(found[1]) == HEALTH


@pytest.mark.parametrize("name", MANIFESTS)
def test_containers_match_the_image(name: str) -> None:
    (container,) = containers(name)
    variables = {}
    for variable in container["env"]:
        secret = variable.get("valueFrom", {}).get("secretKeyRef")
        if secret is not None:
            (kept,) = [each for each in documents_of("deployment.yaml") if each["kind"] == "Secret"]
            assert kept["metadata"]["name"] == secret["name"]
            variable = {**variable, "value": kept["stringData"][secret["key"]]}
        variables[variable["name"]] = variable["value"]
    made = accepted(variables)
    assert made.upstream.password == "choose-one"
    assert [address.port for address in made.listen] == [port()]
    ports = {each["name"]: each["containerPort"] for each in container.get("ports", ())}
    probes = [probe for key, probe in container.items() if key.endswith("Probe")]
    assert len(probes) == 2
    for probe in probes:
        assert probe["timeoutSeconds"] > 2  # proxy.health takes up to 2 s
        if "exec" in probe:
            assert probe["exec"]["command"] == HEALTH
            continue
        assert made.admin is not None
        assert made.admin.host == "0.0.0.0"  # the kubelet connects to the pod's address
        assert ports[probe["httpGet"]["port"]] == made.admin.port
        assert probe["httpGet"]["path"] in ("/healthz", "/readyz?exclude=upstream")
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}


def test_service_selects_the_containers() -> None:
    kinds = {each["kind"]: each for each in documents_of("deployment.yaml")}
    (container,) = containers("deployment.yaml")
    labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert kinds["Service"]["spec"]["selector"] == labels
    assert kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    (served,) = kinds["Service"]["spec"]["ports"]
    opened, hidden = container["ports"]
    assert hidden["name"] == "admin"
    assert served["targetPort"] == opened["name"]
    assert served["port"] == opened["containerPort"] == port() == DEFAULT.listen[0].port


@pytest.mark.parametrize("name", MANIFESTS)
def test_grace_period_exceeds_the_drain_timeout(name: str) -> None:
    for document in documents_of(name):
        if document["kind"] != "Deployment":
            continue
        spec = document["spec"]["template"]["spec"]
        (container,) = containers(name)
        before = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        waited = int(before[1]) if before else 0
        assert spec["terminationGracePeriodSeconds"] > waited + DEFAULT.drain_timeout_s


def test_sidecar_is_private_to_its_pod_and_always_runs() -> None:
    (container,) = containers("sidecar.yaml")
    assert container["restartPolicy"] == "Always"
    assert {"name": "RLPROXY_LISTEN", "value": urls.DEFAULT_LISTEN} in container["env"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_satisfy_their_schemas(name: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    for document in documents_of(name):
        schemas.validate(document, "1.34", strict=True)
    wrong = documents_of(name)[-1]
    wrong["spec"]["no-such-field"] = 1
    with pytest.raises(schemas.ValidationError):
        schemas.validate(wrong, "1.34", strict=True)
