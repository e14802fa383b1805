# Python >= 3.11 with venv, git >= 2.39 and make are all that these targets need.
PYTHON ?= $(firstword $(foreach version,3.13 3.12 3.11 3,$(shell command -v python$(version) 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test check format lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.runtime ## Serve the sample owner on this machine
	@$(BIN)/okf-mcp-gateway demo

test: $(VENV)/.dev ## Run every test
	@$(BIN)/pytest

check: $(VENV)/.dev ## Check style and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright

format: $(VENV)/.dev ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: ## Pin the runtime dependencies anew (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links pyproject.toml -o requirements.lock

clean: ## Remove the environment and every cache
	rm -rf $(VENV) .pytest_cache .ruff_cache dist build

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "No python3 found: install Python 3.11 or newer." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is too old: name a Python 3.11 or newer with 'make PYTHON=...'." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

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
