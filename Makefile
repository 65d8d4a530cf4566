# Every target installs what it needs: on a fresh machine with Python 3.11 or newer and a package index, `make test`
# is the only command. Tools and libraries are installed in $(VENV) only, from hashed requirements files.

PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check --no-input
INSTALL := $(PIP) install --require-hashes --requirement
# Without this variable, pyright asks an index for newer releases of itself.
# Without --project, it may use a configuration from a folder above ours.
PYRIGHT := PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --project pyproject.toml --pythonpath $(BIN)/python
PURE := quarterdeck/errors.py,quarterdeck/events/*,quarterdeck/kernel/*
GENERATED_DOCS := tools/conformance.py tools/diagrams.py tools/agents.py tools/plugins.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help up test lint format conformance crash bench soak docs check-docs lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

up: $(VENV)/.installed ## install Quarterdeck, start its server in the background and print its address
	@$(BIN)/qd up -d
	@echo "A first session, with no key and no network:  $(BIN)/qd run demo"

test: lint $(VENV)/.installed-bench ## run lint, every test, the coverage gate, and a check that generated docs are current
	@echo "tests"
	@$(BIN)/python -m pytest --quiet --numprocesses auto --cov --cov-report= $(ARGS)
	@echo "coverage of the pure core"
	@$(BIN)/coverage report --include='$(PURE)' --fail-under=100
	@$(MAKE) --no-print-directory check-docs

lint: $(VENV)/.installed-dev ## run ruff, pyright (strict) and the import rules
	@echo "lint"
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --quiet --check --output-format concise . || { echo "run 'make format'"; exit 1; }
	@$(PYRIGHT)
	@report=$$($(BIN)/lint-imports --no-cache --no-logo) || { echo "$$report"; exit 1; }

format: $(VENV)/.installed-dev ## format the code
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

conformance: $(VENV)/.installed-dev ## count the cases of the acceptance list that tests show
	@$(BIN)/python tools/conformance.py

crash: $(VENV)/.installed-dev ## kill decks, subreapers and agents: N=1000 kills, SEED= to repeat a run
	@$(BIN)/python -m tests.crash --kills $(or $(N),1000) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: $(VENV)/.installed-bench $(VENV)/.installed-frameworks ## measure; every figure is a ratio to a floor measured in the same run
	@$(BIN)/python -m bench $(ARGS)

soak: $(VENV)/.installed ## run a thousand sessions and a hundred clients for ten minutes; SECONDS=60 for a shorter run
	@$(BIN)/python -m bench.soak --seconds $(or $(SECONDS),600)

docs: $(VENV)/.installed-dev ## regenerate the generated pages of docs/
	@for tool in $(GENERATED_DOCS); do $(BIN)/python $$tool --write || exit 1; done

check-docs: $(VENV)/.installed-dev
	@echo "generated docs"
	@for tool in $(GENERATED_DOCS); do $(BIN)/python $$tool --check || { echo "run 'make docs'"; exit 1; }; done

clean: ## remove all files that the other targets created
	rm -rf $(VENV) .coverage .coverage.* .hypothesis .import_linter_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# ------------------------------------------------------------------------------------------ installation
# A stamp is touched only if its step succeeded, so an interrupted step is repeated from its start.

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Quarterdeck needs Python 3.11 or newer, and '$(PYTHON)' is older."; \
		echo "Use another one:  make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# Build without isolation, so that the build uses only hashed packages too.
$(VENV)/.installed: $(VENV)/.created requirements.txt requirements-build.txt pyproject.toml
	@echo "installing Quarterdeck"
	@$(INSTALL) requirements-build.txt --requirement requirements.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	@echo "installing the tools for tests and lint"
	@$(INSTALL) requirements-dev.txt
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-dev requirements-bench.txt
	@echo "installing the packages that the benchmarks compare with"
	@$(INSTALL) requirements-bench.txt
	@touch $@

# The frameworks have an environment inside the other one: they need versions that conflict with ours, and only
# `make bench` should wait for their installation.
$(VENV)/.installed-frameworks: $(VENV)/.created requirements-frameworks.txt
	@echo "installing the frameworks that the benchmarks compare with"
	@$(BIN)/python -m venv --clear --without-pip $(VENV)/frameworks
	@$(PIP) --python $(VENV)/frameworks/bin/python install --require-hashes --requirement requirements-frameworks.txt
	@touch $@

# ------------------------------------------------------------------------------------------------ locking
# Each file is resolved with the ones before it as constraints, so that all fit into one environment. The frameworks
# have their own. Locked versions stay the same; `make lock UPGRADE=--upgrade` resolves the newest ones.

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command 'make lock' $(UPGRADE)

lock: $(VENV)/.created ## resolve pyproject.toml into the hashed requirements files
	@$(PIP) install 'uv>=0.5.20'
	@$(LOCK) pyproject.toml --output-file requirements.txt
	@$(LOCK) pyproject.toml --group dev --constraint requirements.txt --output-file requirements-dev.txt
	@$(LOCK) --group build --constraint requirements-dev.txt --output-file requirements-build.txt
	@$(LOCK) --group bench --constraint requirements-dev.txt --constraint requirements-build.txt \
		--output-file requirements-bench.txt
	@$(LOCK) --group frameworks --output-file requirements-frameworks.txt
