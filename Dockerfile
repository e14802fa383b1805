# The gateway's image: a virtual environment on slim Python, git, and a trust store with your own CAs.
# .dockerignore lets in only what is copied here. A tag moves: pin it by digest (python:...@sha256:...)
# where builds must be repeatable to the byte.

FROM python:3.13-slim-trixie AS base

# Debian keeps one version of a package at a time: a pinned one would stop building at the next fix.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates git \
    && rm -rf /var/lib/apt/lists/*

# Both stages trust certs/*.crt: pip behind a proxy that opens TLS, and git at run time. The store
# takes any bytes, and one broken certificate breaks it for all hosts, so that each is read first.
COPY certs/ /usr/local/share/ca-certificates/
RUN for certificate in /usr/local/share/ca-certificates/*.crt; do \
        [ -e "$certificate" ] || continue; \
        openssl x509 -noout -in "$certificate" \
            || { echo "certs/${certificate##*/} is not a certificate in PEM form" >&2; exit 1; }; \
    done \
    && update-ca-certificates


FROM base AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src

# Before the sources, so that a change of them doesn't install all dependencies again.
COPY requirements.lock ./
RUN python -m venv /app \
    && /app/bin/pip install --require-hashes --only-binary=:all: --no-compile -r requirements.lock

COPY pyproject.toml README.md LICENSE ./
COPY core/ core/
COPY gateway/ gateway/
RUN /app/bin/pip wheel --no-deps --wheel-dir /dist . \
    && /app/bin/pip install --no-deps --no-index --no-compile /dist/*.whl \
    && /app/bin/pip check \
    && /app/bin/pip uninstall --yes pip

# At run time nothing can write bytecode. By hash, unchecked: the image's files never change, and a
# builder that rewrites their times can't make the bytecode look old.
RUN /app/bin/python -m compileall -q -f -j 0 --invalidation-mode unchecked-hash /app/lib


FROM base

LABEL org.opencontainers.image.title="okf-mcp-gateway" \
      org.opencontainers.image.description="Markdown in many git repositories, served to agents over MCP, always at the right commit." \
      org.opencontainers.image.licenses="MIT"

# A fixed uid, so that volumes and policies can name it. A named volume that is mounted on the cache
# folder takes over its owner.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin okf \
    && install --directory --owner=okf --group=okf --mode=0700 /var/cache/okf

COPY --from=build /app /app

ENV PATH="/app/bin:$PATH" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    OKF_GATEWAY_HOST=0.0.0.0 \
    OKF_GATEWAY_PORT=8080 \
    OKF_GATEWAY_SERVERS=/etc/okf/servers.yaml \
    OKF_GATEWAY_CACHE_DIR=/var/cache/okf

USER 10001:10001
WORKDIR /etc/okf
EXPOSE 8080

# Not urllib.request: it would ask a proxy that the environment names. -S skips the site folder.
HEALTHCHECK --interval=15s --timeout=5s --start-period=5s --retries=3 \
    CMD ["python", "-I", "-S", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['OKF_GATEWAY_PORT']), timeout=3); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]

# Exec form: the gateway itself gets SIGTERM. `docker compose run --rm gateway check` checks the configuration.
ENTRYPOINT ["okf-mcp-gateway"]
