# Everything a newcomer or a contributor runs. Needs make and a Python of 3.11 or newer; installs into ./.venv only.

# The first of these that is new enough makes the environment. To choose: make PYTHON=/path/to/python3.12 test
PYTHON ?= python3.13 python3.12 python3.11 python3
# Extra arguments for pytest, the bench or the lock: make test ARGS="-k sqlite", make lock ARGS=--upgrade
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help run test coverage servers lint types docs bench compare conform peers fuzz soak mutate house release lock clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

run: .venv/run.stamp ## serve the reference service on 127.0.0.1:8080 (HOST, PORT and SEMEL_URL override)
	@exec env SEMEL_DEMO=1 \
	    SEMEL_METRICS=$${SEMEL_METRICS-$$($(BIN)/python -c 'import prometheus_client; print(0)' 2>/dev/null)} \
	    $(BIN)/semel serve

test: servers lint ## everything: lint, types, all tests, on real servers (12 minutes; installs what it names first)
	@scripts/test $(ARGS)

coverage: servers .venv/dev.stamp ## all tests under the tracer: which lines and branches did nothing run? (twice the time)
	$(BIN)/python -m pytest -n auto --dist worksteal --cov --cov-report=term $(ARGS)

servers: ## install the database servers that come in no wheel (as root, with apt; otherwise say which are missing)
	@scripts/install-servers

lint: .venv/dev.stamp ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev.stamp ## mypy, strict
	$(BIN)/mypy

docs: .venv/dev.stamp ## the documents as a site in build/site; a broken link or page fails
	$(BIN)/python docs/make_guarantees.py --check
	$(BIN)/python docs/make_reference.py --check
	$(BIN)/python -m sphinx --quiet --fail-on-warning -d build/.trees docs build/site
	@echo "semel: the site is build/site/index.html"

bench: .venv/dev.stamp ## measure Semel on every store beside a bare application, pgbench and peers (ten minutes)
	$(BIN)/python -m bench $(ARGS)

compare: .venv/dev.stamp ## what hard cases do to effects: Semel, and peers where installed
	$(BIN)/python -m bench.correctness $(ARGS)

conform: .venv/dev.stamp .venv-peers/peers.stamp .venv-peers/node.stamp ## what semel conform says of Semel on every store, and of peers
	$(BIN)/python -m bench.conform $(ARGS)

peers: .venv-peers/peers.stamp ## install the packages that bench, compare and conform add, into .venv-peers

fuzz: .venv/dev.stamp ## fuzz every target with atheris, SECONDS=60 each (pip install atheris)
	@for target in keys canonical form multipart fingerprint prefer urls records exchange files; do \
		$(BIN)/python -m tests.fuzz $$target --seconds $(or $(SECONDS),60) $(ARGS) || exit 1; \
	done

soak: .venv/dev.stamp ## hours of kills, interruptions and lost answers on every store, histories, schedules, every state
	$(BIN)/python -m tests.nemeses.soak $(ARGS)
	$(BIN)/python -m tests.outside
	$(BIN)/python -m verification.explore
	$(BIN)/python -m tests.client.soak
	$(BIN)/python -m tests.imports.soak

mutate: .venv/dev.stamp ## change the rules line by line: do their tests notice? (half an hour; ARGS="core/decide bulk/rules")
	@$(BIN)/python scripts/mutate.py $(ARGS)

house: .venv/dev.stamp ## how the house stands: sizes, rooms, the way of one command, beside their targets
	@$(BIN)/python scripts/house.py $(ARGS)

release: .venv/dev.stamp ## build sdist, wheel, bill of materials and checksums into dist/, and check them
	@scripts/release

lock: .venv/dev.stamp ## resolve requirements/*.in anew into hashed *.txt
	$(COMPILE) requirements/run.in -o requirements/run.txt $(ARGS)
	$(COMPILE) requirements/dev.in -c requirements/run.txt -o requirements/dev.txt $(ARGS)
	$(COMPILE) bench/peers/requirements.in -c requirements/run.txt -o bench/peers/requirements.txt $(ARGS)

clean: ## remove the environment, caches and build results (databases stay)
	rm -rf .venv .venv-peers .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage .coverage.* htmlcov build dist
	find src verification tests -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment, filled in two steps: `make run` stops after the first. Each stamp is written last, so that an
# interrupted install is taken up again.
# --no-deps: the locks name everything. pip would look for a newer release where one package asks for another with an
# extra (pytest-cov for coverage[toml]), and then refuse it, since its hash is not in the lock.
# uv, itself by the lock, installs the second step in seconds of processor time where pip takes two minutes. It reads no
# configuration of pip's: where it does not reach an index, pip installs the same.
.venv/run.stamp: requirements/run.txt pyproject.toml | .venv/bin/pip
	@echo "semel: installing into .venv what requirements/run.txt locks:"
	@sed -n 's/^\([a-z0-9][a-z0-9._-]*==[^ ]*\).*/    \1/p' requirements/run.txt
	@$(PIP) install --quiet --no-deps --require-hashes -r requirements/run.txt
	@echo "semel: installing this checkout in place"
	@$(PIP) install --quiet --no-build-isolation --no-deps -e .
	@touch $@

.venv/dev.stamp: requirements/dev.txt .venv/run.stamp
	@echo "semel: installing into .venv what requirements/dev.txt adds for tests and checks"
	@awk '/^uv==/ { on = 1 } on { print } on && !/\\$$/ { exit }' requirements/dev.txt >.venv/uv.txt
	@$(PIP) install --quiet --no-deps --require-hashes -r .venv/uv.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements/dev.txt || \
		$(PIP) install --quiet --no-deps --require-hashes -r requirements/dev.txt
	@touch $@

# The peers need other versions of some libraries than Semel, so that they never share an environment.
.venv-peers/peers.stamp: bench/peers/requirements.txt | .venv/bin/pip
	@test -x .venv-peers/bin/pip || $(BIN)/python -m venv .venv-peers
	@echo "semel: installing into .venv-peers what bench/peers/requirements.txt locks"
	@.venv-peers/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes \
		-r bench/peers/requirements.txt
	@touch $@

# Those for Node, in a folder of theirs, by their lock; without node and npm they are left out.
.venv-peers/node.stamp: bench/peers/node/package.json bench/peers/node/package-lock.json .venv-peers/peers.stamp
	@mkdir -p .venv-peers/node
	@if command -v node >/dev/null && command -v npm >/dev/null; then \
		echo "semel: installing into .venv-peers/node what bench/peers/node/package-lock.json locks"; \
		cp bench/peers/node/package.json bench/peers/node/package-lock.json .venv-peers/node/ && \
		npm ci --prefix .venv-peers/node --ignore-scripts --no-audit --no-fund --silent; \
	else echo "semel: no node and npm here: the packages for Node are left out"; fi
	@touch $@

# A name on the PATH proves nothing (version managers leave names behind for versions they do not run), and Debian's
# Python comes without ensurepip: each candidate is asked.
.venv/bin/pip:
	@for python in $(PYTHON); do \
		if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
			echo "semel: creating .venv with $$("$$python" --version)"; \
			exec "$$python" -m venv .venv; \
		fi; \
	done; \
	echo "semel: needs Python 3.11 or newer with its venv module. What was tried:" >&2; \
	for python in $(PYTHON); do \
		version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); \
		if [ -z "$$version" ]; then echo "    $$python: does not run" >&2; \
		elif "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
			echo "    $$python: is $$version, but has no venv (on Debian and Ubuntu: apt install python$$version-venv)" >&2; \
		else echo "    $$python: is $$version, too old" >&2; fi; \
	done; \
	echo "Install one, or name one: make PYTHON=/path/to/python3.12 ..." >&2; \
	exit 1
