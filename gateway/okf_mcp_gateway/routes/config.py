"""`GET /config`: what the gateway was started with, values resolved, never a secret (H4)."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from okf_mcp_gateway.config import Configuration
from okf_mcp_gateway.routes.rendering import read_query, render
from okf_mcp_gateway.scrub import Scrubber

_QUERY: Final = {"format": ("json", "yaml")}


def config_route(configuration: Configuration) -> Route:
    """Return the route that shows the configuration."""
    content = _content(configuration)

    async def config(request: Request) -> Response:
        return render(content, read_query(request, _QUERY)["format"])

    return Route("/config", config)


def _content(configuration: Configuration) -> dict[str, Any]:
    settings, registry = configuration.settings, configuration.registry
    # A user is text of somebody's choice: some write the token there, too.
    scrubber = Scrubber(configuration.secrets)
    return {
        "process": {
            "servers_path": str(settings.servers_path),
            "cache_dir": str(settings.cache_dir),
            "host": settings.host,
            "port": settings.port,
            "auth_required": True,
            "pull_wait": settings.pull_wait_seconds,
            "git_timeout": settings.git_timeout_seconds,
            "allowed_origins": list(settings.allowed_origins),
            "log_format": settings.log_format,
            "log_level": settings.log_level,
            "max_requests": settings.max_requests,
        },
        "defaults": {"ref": registry.defaults.ref, "ttl": registry.defaults.ttl_seconds},
        "owners": {
            name: {
                "url": owner.url,
                "ref": owner.ref,
                "ttl": owner.ttl_seconds,
                "roots": [str(root) for root in owner.roots],
            }
            for name, owner in registry.owners.items()
        },
        "credentials": {
            host: {
                "token_env": credential.token_env,
                "token_user": scrubber.scrub(credential.token_user),
            }
            for host, credential in registry.credentials.items()
        },
    }
