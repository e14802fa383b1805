# Python >= 3.11 with venv, git >= 2.39 and make are all that these targets need.
PYTHON ?= python3 python3.14 python3.13 python3.12 python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test check conformance clients prove soak fuzz bench format lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.runtime ## Serve the sample owner on this machine
	@$(BIN)/okf-mcp-gateway demo

# For `test` alone: in how many processes. Its tests wait more than they work, but some measure time.
WORKERS ?= 2

test: $(VENV)/.dev ## Run every test that needs no npm, and measure what they run
	@$(BIN)/pytest --cov --numprocesses=$(WORKERS) --dist=worksteal

check: $(VENV)/.dev ## Check style, types and who imports whom
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-logo

conformance: $(VENV)/.dev ## Run the official MCP suite and the Inspector (needs npm)
	@$(BIN)/pytest -m npm tests/conformance

clients: $(VENV)/.dev ## Run real MCP clients (needs npm)
	@$(BIN)/pytest -m npm tests/clients

# For `prove`: a part of the names of those that are to be proven; for `bench`: a tier.
ONLY ?=

prove: $(VENV)/.dev ## Take away each protection, and see its tests fail (ONLY="part of a name")
	@PYTHONPATH=tests $(BIN)/python -m proving "$(ONLY)"

# For `soak` and `fuzz`: how long it goes on. The former's other tests take about half an hour.
SECONDS ?= 60

soak: $(VENV)/.dev ## Run the tests of faults ten times as long, and all faults at once (SECONDS=60)
	@OKF_SOAK=10 OKF_SOAK_SECONDS=$(SECONDS) $(BIN)/pytest tests/faults tests/core/test_properties.py tests/gateway/test_properties.py

# For `fuzz` alone: frontmatter, requests, servers or all of them, which share the time.
TARGET ?= all

fuzz: $(VENV)/.fuzz ## Hunt for inputs that break us (SECONDS=60 TARGET=all)
	@PYTHONPATH=tests $(BIN)/python -m fuzz $(TARGET) $(SECONDS)

# For `bench` alone: whether other people's servers are measured, too; they come from PyPI and npm.
PEERS ?=

bench: $(VENV)/.dev ## Measure the speed, and write bench/RESULTS.md (ONLY=micro PEERS=1)
	@PYTHONPATH=.:tests $(BIN)/python -m bench $(if $(PEERS),--peers) $(ONLY)

format: $(VENV)/.dev ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: $(VENV)/.dev ## Pin the runtime dependencies anew
	@$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links pyproject.toml -o requirements.lock

clean: ## Remove the environment and what the tools left
	rm -rf $(VENV) .fuzz .hypothesis .pytest_cache .ruff_cache .import_linter_cache .coverage* dist build

# The first of PYTHON that runs, is new enough and can make virtual environments.
$(VENV)/.created:
	@for python in $(PYTHON); do \
		$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
			&& $$python -m venv $(VENV) && touch $@ && exit 0; \
	done; \
	echo "None of these is Python 3.11 or newer with venv: $(PYTHON)." >&2; \
	echo "Install one, or name it: make PYTHON=/path/to/python3 ..." >&2; \
	exit 1

$(VENV)/.runtime: $(VENV)/.created requirements.lock pyproject.toml
	@echo "Setting up $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "Adding what the tests need ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --group dev
	@touch $@

$(VENV)/.fuzz: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --only-binary atheris --group fuzz \
		|| { echo "The fuzzer, atheris, has no wheel for this Python; make PYTHON=python3.11 clean fuzz has." >&2; exit 1; }
	@touch $@
