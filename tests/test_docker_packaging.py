"""The image and what lies around it, proven as far as that goes without a container engine.

The build stage of the Dockerfile is run for real: its own COPY and RUN instructions, on the build
context that .dockerignore leaves, with the image's paths moved into a folder. What comes out is
made read-only and run as the image's own user (another one than ours where the tests run as root),
with the image's own environment, entry point and health check. Left to an engine: the base image,
apt, and what the kernel enforces for compose.yaml.
"""

import contextlib
import functools
import http.server
import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from support.gateway_process import find_free_port

ROOT = Path(__file__).parents[1]
IMAGE_PATHS = ("/app", "/src", "/dist", "/etc/okf", "/var/cache/okf", "/usr/local/share")
LOCK_LINE = re.compile(
    r"[a-z0-9-]+==[0-9][\w.]*( ; [^@/]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?"
)
LOCK_COMMENT = re.compile(r" +# {1,3}(via ?)?([\w-]+( \(pyproject\.toml\))?)?")
SETTINGS = {
    "OKF_GATEWAY_TOKEN": None,
    "OKF_GATEWAY_SERVERS": "servers.yaml",
    "OKF_GATEWAY_CACHE_DIR": None,
    "OKF_GATEWAY_HOST": "0.0.0.0",  # noqa: S104 - the contract's default
    "OKF_GATEWAY_PORT": "8080",
    "OKF_GATEWAY_PULL_WAIT": "5",
    "OKF_GATEWAY_GIT_TIMEOUT": "120",
    "OKF_GATEWAY_ALLOWED_ORIGINS": "",
    "OKF_GATEWAY_MAX_REQUESTS": "1000",
    "OKF_GATEWAY_ANSWER_CACHE": "on",
    "OKF_GATEWAY_LOG_FORMAT": "text",
    "OKF_GATEWAY_LOG_LEVEL": "info",
}
"""Every setting of G1 with its default; None where that is not one fixed text."""


# The Dockerfile ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile, its continuation lines joined."""

    keyword: str
    value: str


def dockerfile_stages() -> list[list[Instruction]]:
    """The instructions of each stage in order; the first of each is its FROM."""
    kept = [line for line in text("Dockerfile").splitlines() if not line.lstrip().startswith("#")]
    stages: list[list[Instruction]] = []
    for line in "\n".join(kept).replace("\\\n", "").splitlines():
        if not line.strip():
            continue
        keyword, value = line.split(maxsplit=1)
        if keyword == "FROM":
            stages.append([])
        stages[-1].append(Instruction(keyword, value))
    return stages


def only(stage: list[Instruction], keyword: str) -> str:
    [found] = [each.value for each in stage if each.keyword == keyword]
    return found


def stage_environment(stage: list[Instruction]) -> dict[str, str]:
    words = [shlex.split(each.value) for each in stage if each.keyword == "ENV"]
    return dict(word.split("=", 1) for each in words for word in each)


def health_check() -> list[str]:
    return json.loads(only(FINAL, "HEALTHCHECK").partition("CMD ")[2])


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


BASE, BUILD, FINAL = dockerfile_stages()


def test_a_dockerfile_linter_finds_nothing() -> None:
    assert run([tool("hadolint"), "Dockerfile"]).stdout == ""


def test_the_dockerfile_linter_would_find_something(tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text(text("Dockerfile").replace("ENTRYPOINT [", "ENTRYPOINT sh -c ["))
    assert "DL3025" in run([tool("hadolint"), str(wrong)], expect=1).stdout


def test_all_stages_stand_on_one_slim_python_of_a_fixed_version() -> None:
    assert re.fullmatch(r"python:3\.1\d-slim-[a-z]+ AS base", BASE[0].value)
    assert [BUILD[0].value, FINAL[0].value] == ["base AS build", "base"]


def test_the_image_runs_as_a_user_with_a_fixed_uid_who_owns_the_cache() -> None:
    uid, gid = only(FINAL, "USER").split(":")
    [create_user] = [each.value for each in FINAL if each.keyword == "RUN"]
    assert uid == gid == str(image_uid()) != "0"
    assert f"useradd --uid {uid} --user-group" in create_user
    assert "--owner=okf --group=okf" in create_user
    assert create_user.endswith(stage_environment(FINAL)["OKF_GATEWAY_CACHE_DIR"])


def test_the_gateway_itself_gets_the_signals_and_the_arguments() -> None:
    assert json.loads(only(FINAL, "ENTRYPOINT")) == ["okf-mcp-gateway"]


def test_the_health_check_needs_no_shell_and_no_other_program() -> None:
    assert health_check()[0] == "python"
    assert "curl" not in text("Dockerfile")


def test_the_sources_come_after_the_dependencies_and_the_image_takes_only_the_environment() -> None:
    copies = [each.value.split()[0] for each in BUILD if each.keyword == "COPY"]
    assert copies == ["requirements.lock", "pyproject.toml", "core/", "gateway/"]
    assert only(FINAL, "COPY") == "--from=build /app /app"


# The build context ------------------------------------------------------------------------------


def is_ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path out: the last pattern that fits it or a parent decides."""
    parents = ["/".join(path.split("/")[: depth + 1]) for depth in range(path.count("/") + 1)]
    ignored = False
    for line in text(".dockerignore").splitlines():
        if not line or line.startswith("#"):
            continue
        glob = re.escape(line.removeprefix("!"))
        glob = glob.replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
        if any(re.fullmatch(glob, each) for each in parents):
            ignored = not line.startswith("!")
    return ignored


def copy_build_context(target: Path) -> None:
    """Copy what `docker build .` would send, from the folders that the image is made of."""
    for folder in (".", "certs", "core", "gateway"):
        depth = "*" if folder in (".", "certs") else "**/*"
        for file in sorted((ROOT / folder).glob(depth)):
            path = file.relative_to(ROOT)
            if file.is_file() and not is_ignored(path.as_posix()):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target / path)


@pytest.mark.parametrize(
    "path",
    [
        ".git/HEAD",
        ".venv/bin/python",
        ".env",
        ".env.example",
        "tests/test_docker_packaging.py",
        "certs/README.md",
        "certs/ca.key",
        "certs/ca.pem",
        "servers.yaml",
        "Makefile",
        "core/okf_mcp_server/__pycache__/errors.cpython-313.pyc",
        "gateway/.env",
    ],
)
def test_the_build_context_leaves_out(path: str) -> None:
    assert is_ignored(path)


@pytest.mark.parametrize(
    "path",
    [
        "certs/company-root.crt",
        "certs/.gitkeep",
        "core/okf_mcp_server/py.typed",
        "gateway/okf_mcp_gateway/source/__init__.py",
        "pyproject.toml",
        "requirements.lock",
        "README.md",
        "LICENSE",
    ],
)
def test_the_build_context_takes_in(path: str) -> None:
    assert not is_ignored(path)


# compose.yaml -----------------------------------------------------------------------------------


def compose() -> dict[str, Any]:
    return yaml.safe_load(text("compose.yaml"))


def test_the_compose_file_follows_the_schema_of_the_compose_specification() -> None:
    run([tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", "compose.yaml"])


def test_the_compose_schema_refuses_an_unknown_key(tmp_path: Path) -> None:
    wrong = compose()
    wrong["services"]["gateway"]["read-only"] = True
    (tmp_path / "compose.yaml").write_text(json.dumps(wrong))
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    refused = run([*command, str(tmp_path / "compose.yaml")], expect=1)
    assert "read-only" in refused.stdout


def test_the_service_is_confined_and_comes_back_by_itself() -> None:
    gateway = compose()["services"]["gateway"]
    wanted = {
        "build": ".",
        "restart": "unless-stopped",
        "init": True,
        "ports": ["${OKF_GATEWAY_PORT:-8080}:8080"],
        "env_file": ".env",
        "read_only": True,
        "tmpfs": ["/tmp"],  # noqa: S108 - the folder in the container
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "stop_grace_period": "10s",
    }
    assert {key: gateway[key] for key in wanted} == wanted
    assert "image" not in gateway, "compose would ask a public registry for it first"


def test_the_environment_pins_what_is_about_the_inside_of_the_container() -> None:
    """Host, port and paths in .env can't move what the port and the volumes are tied to."""
    image = stage_environment(FINAL)
    service = compose()["services"]["gateway"]
    assert service["environment"] == {
        name: value for name, value in image.items() if name.startswith("OKF_")
    }
    assert service["volumes"] == [
        f"./servers.yaml:{image['OKF_GATEWAY_SERVERS']}:ro",
        f"cache:{image['OKF_GATEWAY_CACHE_DIR']}",
    ]
    assert compose()["volumes"] == {"cache": None}
    assert image["OKF_GATEWAY_PORT"] == service["ports"][0].rpartition(":")[2]
    assert Path(image["OKF_GATEWAY_SERVERS"]).parent == Path(only(FINAL, "WORKDIR"))


# Settings, registry, client ---------------------------------------------------------------------


@pytest.mark.row("G1")
def test_the_sample_environment_names_every_setting_with_its_default() -> None:
    lines = text(".env.example").splitlines()
    found = [re.fullmatch(r"#?(OKF_\w+)=(.*)", line) for line in lines]
    named = {each[1]: each[2] for each in found if each}
    assert named.keys() == SETTINGS.keys() | {"OKF_GATEWAY_TOKEN_FILE", "OKF_GIT_TOKEN_BITBUCKET"}
    assert {name: named[name] for name, default in SETTINGS.items() if default is not None} == {
        name: default for name, default in SETTINGS.items() if default is not None
    }


def test_the_sample_environment_knows_every_setting_that_the_gateway_reads() -> None:
    source = text("gateway/okf_mcp_gateway/config.py")
    assert set(re.findall(r"\"(OKF_GATEWAY_[A-Z_]+)\"", source)) == SETTINGS.keys()


def test_each_setting_of_the_sample_environment_has_a_comment_that_tells_the_default() -> None:
    for block in re.split(r"\n(?=\n)|(?<=[A-Z]=)\n", text(".env.example")):
        for name, value in re.findall(r"^#?(OKF_\w+)=(.*)$", block, flags=re.MULTILINE):
            assert re.search(r"^# .*\b[Dd]efault: |No default\.", block, flags=re.MULTILINE), name
            assert SETTINGS.get(name) is None or value in block.partition("efault: ")[2], name


def test_the_sample_environment_sets_nothing_so_that_nobody_runs_on_a_known_token() -> None:
    lines = [line for line in text(".env.example").splitlines() if line and line[0] != "#"]
    assert lines == ["OKF_GATEWAY_TOKEN="]


def test_the_sample_registry_has_two_owners_on_hosts_that_cannot_exist() -> None:
    registry = yaml.safe_load(text("servers.yaml"))
    assert list(registry["owners"]) == ["acme", "beta"]
    hosts = [each["url"].split("/")[2] for each in registry["owners"].values()]
    assert all(host.endswith(".example.invalid") for host in hosts)
    assert registry["credentials"] == {
        hosts[1]: {"token_env": "OKF_GIT_TOKEN_BITBUCKET", "token_user": "x-token-auth"}
    }
    assert "OKF_GIT_TOKEN_BITBUCKET" in text(".env.example")


def test_the_client_configuration_names_the_gateway_of_acme() -> None:
    assert json.loads(text(".mcp.json")) == {
        "mcpServers": {
            "acme-knowledge": {
                "type": "http",
                "url": "http://${MCP_GATEWAY_HOST:-localhost}:8080/acme/mcp",
                "headers": {"Authorization": "Bearer ${MCP_GATEWAY_TOKEN}"},
            }
        }
    }


@pytest.mark.parametrize("path", ["certs/company-root.crt", "certs/ca.key", ".env"])
def test_git_ignores_what_belongs_to_one_installation(path: str) -> None:
    run(["git", "check-ignore", "--no-index", "--quiet", path])


@pytest.mark.parametrize("path", ["certs/.gitkeep", "certs/README.md", ".env.example"])
def test_git_keeps_what_belongs_to_everybody(path: str) -> None:
    assert (ROOT / path).exists()
    run(["git", "check-ignore", "--no-index", "--quiet", path], expect=1)


# The lock ---------------------------------------------------------------------------------------


def locked_versions() -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([\w.]+)", text("requirements.lock"), re.MULTILINE))


def test_the_lock_holds_exact_versions_and_hashes_and_no_address() -> None:
    lines = text("requirements.lock").splitlines()
    header = "".join(line for line in lines if line.startswith("#"))
    assert "uv pip compile" in header
    assert not re.search(r"://|--(extra-)?index-url |--find-links |\w\.(org|com|net|io)\b", header)
    for line in lines[header.count("#") :]:
        assert LOCK_LINE.fullmatch(line) or LOCK_COMMENT.fullmatch(line), line


def test_the_lock_fits_every_dependency_of_the_project() -> None:
    project = tomllib.loads(text("pyproject.toml"))["project"]
    locked = locked_versions()
    for requirement in map(Requirement, project["dependencies"]):
        assert requirement.name in locked
        assert requirement.specifier.contains(locked[requirement.name]), requirement


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_lock_has_a_ready_wheel_of_everything_for_the_image(
    machine: str, tmp_path: Path
) -> None:
    """The slim image has no compiler, and its Python is not the one that runs this test."""
    version = re.search(r"3\.\d+", BASE[0].value)
    assert version
    run([base_python(), "-m", "venv", str(tmp_path / "venv")], deadline=120)
    platforms = ["manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34"]
    command = (
        f"install --dry-run --ignore-installed --no-deps --only-binary=:all: --target {tmp_path}/x"
    )
    run(
        [str(tmp_path / "venv/bin/pip"), *command.split()]
        + [f"--platform={name}_{machine}" for name in platforms]
        + [f"--python-version={version[0]}", "--require-hashes", "-r", "requirements.lock"],
        deadline=300,
    )


# The trust store --------------------------------------------------------------------------------


@pytest.fixture
def trust_store(tmp_path: Path) -> "TrustStore":
    command = shutil.which("update-ca-certificates", path=f"{os.environ['PATH']}:/usr/sbin")
    if command is None or shutil.which("openssl") is None:
        pytest.skip("update-ca-certificates and openssl are not on this machine")
    return TrustStore(tmp_path, command)


class TrustStore:
    """The image's trust store in a folder, made by the Dockerfile's own instruction."""

    def __init__(self, folder: Path, update_ca_certificates: str) -> None:
        self.bundle = folder / "etc/ca-certificates.crt"
        self._image = folder / "image"
        self._certificates = self._image / "usr/local/share/ca-certificates"
        self._certificates.mkdir(parents=True)
        self.bundle.parent.mkdir()
        (folder / "bin").mkdir()
        (folder / "hooks").mkdir()
        command = folder / "bin/update-ca-certificates"
        command.write_text(
            f'#!/bin/sh\nexec "{update_ca_certificates}" --localcertsdir "{self._certificates}"'
            f' --etccertsdir "{self.bundle.parent}" --hooksdir "{folder / "hooks"}"\n'
        )
        command.chmod(0o755)
        self._path = f"{folder / 'bin'}:{os.environ['PATH']}"

    def build(self, *, expect: int = 0, **certificates: str) -> subprocess.CompletedProcess[str]:
        """Run the instruction over certs/ as the build context has it, plus `NAME.crt` for each."""
        (self._certificates / ".gitkeep").touch()
        (self._certificates / "README.md").write_text("not a certificate")
        for name, content in certificates.items():
            (self._certificates / f"{name}.crt").write_text(content)
        [command] = [each.value for each in BASE if "update-ca-certificates" in each.value]
        environment = {**os.environ, "PATH": self._path}
        return run(["sh", "-c", moved(command, self._image)], env=environment, expect=expect)


def test_a_folder_without_certificates_leaves_the_public_authorities(
    trust_store: TrustStore,
) -> None:
    trust_store.build()
    assert trust_store.bundle.read_text().count("BEGIN CERTIFICATE") > 50


def test_git_trusts_a_host_whose_certificate_is_in_the_folder(
    trust_store: TrustStore, tmp_path: Path
) -> None:
    key, certificate = make_certificate(tmp_path)
    repository = tmp_path / "served/knowledge.git"
    run(["git", "init", "--quiet", "--bare", str(repository)])
    run(["git", "-C", str(repository), "update-server-info"])
    with HttpsServer(repository.parent, key, certificate) as address:
        environment = {"PATH": os.environ["PATH"], "GIT_SSL_CAINFO": str(trust_store.bundle)}
        command = ["git", "ls-remote", f"{address}/knowledge.git"]
        trust_store.build()
        assert "certificate" in run(command, env=environment, expect=128).stderr
        trust_store.build(company=certificate.read_text())
        run(command, env=environment)


def test_the_build_stops_at_a_file_that_is_no_certificate_and_names_it(
    trust_store: TrustStore,
) -> None:
    assert "certs/broken.crt is not a certificate in PEM form" in (
        trust_store.build(broken="no PEM", expect=1).stderr
    )


# The image --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Image:
    """What the Dockerfile made, in a folder that stands for `/`."""

    root: Path
    environment: Mapping[str, str]
    uid: int | None
    """The user who runs it; None: we do, since only root can become another one."""

    def path(self, path: str) -> Path:
        return Path(moved(path, self.root))

    def run(
        self, command: list[str], *, expect: int = 0, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return run(
            command,
            cwd=self.path(only(FINAL, "WORKDIR")),
            env={**self.environment, **environment},
            uid=self.uid,
            expect=expect,
            stdin=stdin,
        )


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image's files after the build stage's own steps, read-only, with compose's mounts."""
    root = Path(tempfile.mkdtemp(prefix="okf-image-"))
    root.chmod(0o755)  # pytest's own temporary folders are closed to other users
    try:
        (root / "context").mkdir()
        copy_build_context(root / "context")
        build_stage(root)
        shutil.rmtree(root / "src")
        yield finished_image(root)
    finally:
        run(["chmod", "-R", "u+w", str(root)])
        shutil.rmtree(root)


def build_stage(root: Path) -> None:
    """Do what the build stage says, with an interpreter of this machine as the image's `python`."""
    (root / "bin").mkdir()
    python = root / "bin/python"
    python.write_text(f'#!/bin/sh\nexec "{python_for(runtime_uid())}" "$@"\n')
    python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}
    workdir = root
    for step in BUILD[1:]:
        value = moved(step.value, root)
        if step.keyword == "ENV":
            environment |= stage_environment([step])
        elif step.keyword == "WORKDIR":
            workdir = Path(value)
            workdir.mkdir(parents=True)
        elif step.keyword == "COPY":
            *sources, target = value.split()
            for source in sources:
                copy_into(root / "context" / source, workdir / target)
        elif step.keyword == "RUN":
            run(["sh", "-c", value], cwd=workdir, env=environment, deadline=300)
        else:
            raise AssertionError(f"this test can't do {step.keyword}")


def copy_into(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def runtime_uid() -> int | None:
    return image_uid() if os.getuid() == 0 else None


def python_for(uid: int | None) -> str:
    """An interpreter that the image's user may run: one in our home folder is closed to others."""
    probe = "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"
    for candidate in (base_python(), "/usr/local/bin/python3", "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if finish([candidate, "-c", probe], cwd=Path("/"), uid=uid).returncode == 0:
                return candidate
    pytest.skip(f"uid {image_uid()} may run no Python >= 3.11 with venv on this machine")


def finished_image(root: Path) -> Image:
    variables = {name: moved(value, root) for name, value in stage_environment(FINAL).items()}
    variables["PATH"] = variables["PATH"].replace("$PATH", os.environ["PATH"])
    # The one setting that is not the image's: tests don't open a port to the network.
    variables |= {"HOME": "/nonexistent", "OKF_GATEWAY_HOST": "127.0.0.1"}
    made = Image(root, variables, runtime_uid())
    cache = made.path("/var/cache/okf")
    cache.mkdir(parents=True, mode=0o700)
    made.path("/etc/okf").mkdir(parents=True)
    shutil.copyfile(ROOT / "servers.yaml", made.path("/etc/okf/servers.yaml"))
    run(["chmod", "-R", "a-w", str(root)])
    cache.chmod(0o700)
    if made.uid is not None:
        os.chown(cache, made.uid, made.uid)
    return made


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run the gateway as another user")
def test_the_gateway_runs_as_another_user_than_the_one_who_built_it(image: Image) -> None:
    found = image.run(["python", "-c", "import os; print(os.getuid(), os.getgroups())"])
    assert found.stdout.split() == [str(image_uid()), "[]"]
    assert image.path("/app").stat().st_uid == 0


def test_only_the_cache_can_be_written(image: Image) -> None:
    folders = [str(each) for each in sorted(image.root.rglob("*")) if each.is_dir()]
    script = (
        "import os, sys; print(*[f for f in sys.stdin.read().split() if os.access(f, os.W_OK)])"
    )
    found = image.run(["python", "-c", script], stdin="\n".join(folders))
    assert found.stdout.split() == [str(image.path("/var/cache/okf"))]


def test_the_image_has_the_locked_versions_and_no_installer(image: Image) -> None:
    script = (
        "import importlib.metadata as m; print(*{(d.name, d.version) for d in m.distributions()})"
    )
    script = script.replace("(d.name, d.version)", "f'{d.name}=={d.version}'")
    words = image.run(["python", "-c", script]).stdout.split()
    installed = dict(each.split("==") for each in words)
    normal = {re.sub(r"[-_.]+", "-", name).lower(): each for name, each in installed.items()}
    assert "pip" not in normal
    assert normal.pop("okf-mcp-server")
    normal.pop("setuptools", None)  # Python 3.11 puts it into every environment
    assert normal.items() <= locked_versions().items()


@pytest.mark.row("G4")
def test_git_can_ask_the_gateway_for_a_token_in_the_image(image: Image) -> None:
    """GIT_ASKPASS names a program: the wheel and the image must keep it executable."""
    [askpass] = image.path("/app/lib").rglob("askpass.sh")
    image.run([str(askpass), "question"], expect=1, OKF_ASKPASS_PROMPT="another question")


def test_every_module_of_the_image_is_compiled_for_good(image: Image) -> None:
    """Flag 1 in the header: valid by its presence, the source's time is never asked (PEP 552)."""
    sources = list(image.path("/app/lib").rglob("*.py"))
    assert len(sources) > 500
    for source in sources:
        [compiled] = (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")
        assert compiled.read_bytes()[4:8] == b"\x01\0\0\0", source


@pytest.mark.row("G1", "G2", "G3")
def test_the_check_accepts_the_sample_registry_and_touches_no_cache(image: Image) -> None:
    image.run(["okf-mcp-gateway", "check"], OKF_GATEWAY_TOKEN="north")
    assert list(image.path("/var/cache/okf").iterdir()) == []


@pytest.mark.row("G1")
def test_the_check_without_a_token_is_a_sentence_and_status_1(image: Image) -> None:
    failed = image.run(["okf-mcp-gateway", "check"], expect=1)
    assert "OKF_GATEWAY_TOKEN" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_the_health_check_fails_where_nothing_listens(image: Image) -> None:
    image.run(health_check(), OKF_GATEWAY_PORT=str(find_free_port()), expect=1)


@pytest.mark.row("H1", "P8")
def test_the_image_serves_is_healthy_and_stops_within_five_seconds(image: Image) -> None:
    port = str(find_free_port())
    before = tree(image.path("/app"))
    process = subprocess.Popen(
        json.loads(only(FINAL, "ENTRYPOINT")),
        cwd=image.path(only(FINAL, "WORKDIR")),
        env={**image.environment, "OKF_GATEWAY_TOKEN": "north", "OKF_GATEWAY_PORT": port},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        user=image.uid,
        group=image.uid,
        extra_groups=None if image.uid is None else [],
    )
    try:
        wait_until_healthy(image, process, port)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=5)
    finally:
        process.kill()
        process.communicate(timeout=5)
    assert process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in output
    assert tree(image.path("/app")) == before


def wait_until_healthy(image: Image, process: subprocess.Popen[str], port: str) -> None:
    end = time.monotonic() + 20
    environment = {**image.environment, "OKF_GATEWAY_PORT": port}
    while finish(health_check(), env=environment, uid=image.uid, cwd=image.root).returncode != 0:
        if process.poll() is not None:
            output, _ = process.communicate(timeout=5)
            pytest.fail(f"the gateway ended with status {process.returncode}: {output}")
        assert time.monotonic() < end, "the gateway did not become healthy"


# Common -----------------------------------------------------------------------------------------


def finish(
    command: list[str],
    *,
    deadline: float = 60,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    uid: int | None = None,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, within a deadline in seconds."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=deadline,
        umask=0o022,
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
        check=False,
    )


def run(
    command: list[str],
    *,
    expect: int = 0,
    deadline: float = 60,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    uid: int | None = None,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command as `finish` does; any status but `expect` fails the test."""
    done = finish(command, deadline=deadline, cwd=cwd, env=env, uid=uid, stdin=stdin)
    assert done.returncode == expect, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def moved(value: str, root: Path) -> str:
    """Move the image's absolute paths in a text under `root`."""
    paths = "|".join(map(re.escape, IMAGE_PATHS))
    return re.sub(rf"(?<![\w.}}/])({paths})(?![\w-])", rf"{root}\1", value)


def tool(name: str) -> str:
    """A program of the development dependencies, beside the Python that runs the tests."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def base_python() -> str:
    """The interpreter that the virtual environment of the tests was made from."""
    return str(Path(getattr(sys, "_base_executable", sys.executable)))


def image_uid() -> int:
    return int(only(FINAL, "USER").partition(":")[0])


def tree(folder: Path) -> dict[Path, tuple[int, int]]:
    files = [(each, each.lstat()) for each in folder.rglob("*")]
    return {path: (status.st_size, status.st_mtime_ns) for path, status in files}


def make_certificate(folder: Path) -> tuple[Path, Path]:
    key, certificate = folder / "host.key", folder / "host.pem"
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost"]
    run([*request.split(), *names, "-keyout", str(key), "-out", str(certificate)])
    return key, certificate


class HttpsServer:
    """Serve a folder over TLS on localhost, for a `with` block that gets its address."""

    def __init__(self, folder: Path, key: Path, certificate: Path) -> None:
        handler = functools.partial(QuietHandler, directory=str(folder))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> str:
        self._thread.start()
        return f"https://localhost:{self._server.server_port}"

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join(timeout=5)
        self._server.server_close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass
