"""`GET /config`: what the gateway was started with."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.in_process import in_order, running, servers

pytestmark = pytest.mark.anyio

SOUTH_TOKEN = "south-canary-token"
REGISTRY: dict[str, Any] = {
    "defaults": {"ref": "trunk", "ttl": 30},
    "owners": {
        "zulu": {"url": "https://Git.Example/zulu.git"},
        "acme": {"url": "file:///srv/a%20b.git", "ref": "1.10", "ttl": 0, "roots": ["b", "a/c"]},
    },
    "credentials": {
        "git.example": {"token_env": "OKF_GIT_TOKEN_A"},
        "127.0.0.1:8443": {"token_env": "OKF_GIT_TOKEN_B", "token_user": "x-token-auth"},
    },
}


def expected(folder: Path) -> dict[str, Any]:
    return {
        "process": {
            "servers_path": str(folder / "servers.yaml"),
            "cache_dir": str(folder / "cache"),
            "host": "::1",
            "port": 8081,
            "auth_required": True,
            "pull_wait": 2.5,
            "git_timeout": 7.0,
            "allowed_origins": ["https://app.example"],
            "log_format": "json",
            "log_level": "debug",
            "max_requests": 7,
        },
        "defaults": {"ref": "trunk", "ttl": 30},
        "owners": {
            "zulu": {
                "url": "https://Git.Example/zulu.git",
                "ref": "trunk",
                "ttl": 30,
                "roots": ["."],
            },
            "acme": {
                "url": "file:///srv/a%20b.git",
                "ref": "1.10",
                "ttl": 0,
                "roots": ["b", "a/c"],
            },
        },
        "credentials": {
            "git.example": {"token_env": "OKF_GIT_TOKEN_A", "token_user": "x-access-token"},
            "127.0.0.1:8443": {"token_env": "OKF_GIT_TOKEN_B", "token_user": "x-token-auth"},
        },
    }


ENVIRONMENT = {
    "OKF_GATEWAY_HOST": "::1",
    "OKF_GATEWAY_PORT": "8081",
    "OKF_GATEWAY_PULL_WAIT": "2.5",
    "OKF_GATEWAY_GIT_TIMEOUT": "7",
    "OKF_GATEWAY_ALLOWED_ORIGINS": "https://app.example",
    "OKF_GATEWAY_LOG_FORMAT": "JSON",
    "OKF_GATEWAY_LOG_LEVEL": "debug",
    "OKF_GATEWAY_MAX_REQUESTS": "7",
    "OKF_GIT_TOKEN_A": SOUTH_TOKEN,
    "OKF_GIT_TOKEN_B": SOUTH_TOKEN,
}


@pytest.mark.row("H4", "H6")
@pytest.mark.parametrize("query", ["", "?format=json"])
async def test_the_configuration_stands_in_this_order_resolved(query: str, tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    async with running(folder, json.dumps(REGISTRY), environment=ENVIRONMENT) as gateway:
        answer = await gateway.get(f"/config{query}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert in_order(answer.json()) == in_order(expected(folder))


@pytest.mark.row("H4", "H6")
async def test_yaml_has_the_same_structure_in_the_same_order(tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    async with running(folder, json.dumps(REGISTRY), environment=ENVIRONMENT) as gateway:
        answer = await gateway.get("/config?format=yaml")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/yaml"
        assert in_order(yaml.safe_load(answer.text)) == in_order(expected(folder))


@pytest.mark.row("H4")
async def test_without_settings_the_defaults_are_shown(tmp_path: Path) -> None:
    async with running(tmp_path / "gateway", servers(acme="file:///nonexistent")) as gateway:
        shown = (await gateway.get("/config")).json()
    assert in_order({key: shown[key] for key in ("defaults", "owners", "credentials")}) == in_order(
        {
            "defaults": {"ref": "main", "ttl": 60},
            "owners": {
                "acme": {"url": "file:///nonexistent", "ref": "main", "ttl": 60, "roots": ["."]}
            },
            "credentials": {},
        }
    )


@pytest.mark.row("H4", "G4")
async def test_secrets_are_never_shown_but_the_names_of_their_variables_are(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "gateway"
    async with running(folder, json.dumps(REGISTRY), environment=ENVIRONMENT) as gateway:
        for query in ("", "?format=yaml"):
            text = (await gateway.get(f"/config{query}")).text
            assert SOUTH_TOKEN not in text
            assert gateway.client.headers["Authorization"].split()[1] not in text
            assert "OKF_GIT_TOKEN_A" in text
