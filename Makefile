# `make` lists the targets. Everything runs in .venv, which `make venv` builds from requirements-dev.lock.

# Bytecode is kept, whatever the environment says: tests and benches start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
PIP := pip==26.0
PIP_TOOLS := pip-tools==7.6.2

BIN := .venv/bin
LOCK_VENV := build/lock-venv

# The interpreter's own pip installs into the environment, so that ensurepip is not needed (Debian splits it off).
# Twice quiet: errors only.
pip_into = $(PYTHON) -m pip --python $(1)/bin/python --disable-pip-version-check -qq

# Locks name no index and no path: they install from wherever pip is configured to look.
PIP_COMPILE := $(LOCK_VENV)/bin/pip-compile --quiet --generate-hashes --strip-extras --no-header \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options

# Files in the order of tests/conftest.py: the longest first, not those with the most tests.
WORKERS := -n 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv run check test test-deep bench lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: .venv/.stamp ## Build .venv from the lock, with roost installed editable

run: venv ## Run the demonstration
	@$(BIN)/roost demo

check: venv ## Lint, check format, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports --no-logo

test: check ## Check, then run the tests
	$(BIN)/pytest $(WORKERS)

test-deep: venv ## Run what takes too long for every change: many rounds, many kills, many examples
	$(BIN)/pytest $(WORKERS) -m deep
	ROOST_TEST_EFFORT=4 $(BIN)/pytest $(WORKERS) tests/property tests/oracle tests/contract/test_store_state_machine.py \
		tests/unit/test_maintenance.py

bench: venv ## Measure the engine
	@$(BIN)/roost bench engine

lock: ## Renew both locks from pyproject.toml (LOCK_ARGS=--upgrade for newer versions)
	@echo "Locking the dependencies: a minute or two."
	@$(PYTHON) -m venv --clear --without-pip $(LOCK_VENV)
	@$(call pip_into,$(LOCK_VENV)) install $(PIP_TOOLS)
	@$(PIP_COMPILE) $(LOCK_ARGS) --extra data --extra postgres --output-file requirements.lock pyproject.toml
	@$(PIP_COMPILE) $(LOCK_ARGS) --extra data --extra postgres --extra dev --constraint requirements.lock \
		--output-file requirements-dev.lock pyproject.toml
	@sed -i '1i # Made by "make lock" from pyproject.toml; not edited by hand.' requirements.lock requirements-dev.lock
	@rm -rf $(LOCK_VENV)

clean: ## Remove .venv, caches and build products
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A changed lock rebuilds the environment from nothing, so that dropped packages are gone;
# a changed pyproject.toml only reinstalls roost. An old pip, as Debian has it, takes a minute to choose among the files
# that an index has, and compiles on one core: so a newer one is put there first, and bytecode is made on all.
.venv/.locked: requirements-dev.lock
	@echo "Building .venv from requirements-dev.lock: the first time takes a minute or two."
	@$(PYTHON) -m venv --clear --without-pip .venv
	@$(call pip_into,.venv) install $(PIP)
	@$(BIN)/python -m pip -qq install --no-compile --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	@touch $@

.venv/.stamp: .venv/.locked pyproject.toml
	@echo "Installing roost into .venv (editable)."
	@$(call pip_into,.venv) install --no-deps --no-build-isolation --editable .
	@touch $@
