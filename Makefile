# `make run` and `make test` are all a newcomer needs. Everything they need is installed by them.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

BIN := target/debug/rollscope
# Writes the large dumps that the page tests open.
BENCH := target/debug/rollscope-bench
VENV := .venv
PYTHON := $(VENV)/bin/python
# For the tests our crates are compiled by Clippy, which stops at every warning. `cargo clippy` would check the 400 dependencies
# once more, beside building them: ten minutes.
LINTED := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__ cargo
# The oldest C library that the wheel runs with: RHEL 8, Debian 10, Ubuntu 20.04. Zig, from PyPI, links against it on any machine.
GLIBC := 2.28
TARGET := $(shell rustc -vV | sed -n 's/^host: //p')
WITH_ZIG := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
MATURIN := $(WITH_ZIG) maturin build --release --locked --zig --target $(TARGET) --compatibility manylinux_$(subst .,_,$(GLIBC))
PACKAGE_SOURCES := $(shell find python/src python/raw python/rollscope crates/names -type f -not -name '*.so' -not -name '*.pyc' 2>/dev/null) python/build.rs python/Cargo.toml python/Cargo.lock python/pyproject.toml
UI_SOURCES := $(shell find ui -path ui/node_modules -prune -o -path ui/dist -prune -o -path ui/dist-static -prune -o -path ui/artifacts -prune -o -type f -print 2>/dev/null)

.PHONY: help run cluster fuzz test test-rust test-ui test-side-by-side test-page test-e2e test-torture test-python lint lint-python audit bench bench-sdk release wheel ui dev clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(BIN) ## build everything and serve the demo run
	$(BIN) demo

CLUSTER :=
cluster: $(BIN) $(VENV)/.ready ## a lake with nodes and workers on this machine, and the demo run; CLUSTER=--free-ports for other ports
	$(PYTHON) deploy/local/cluster.py --rollscope $(BIN) --weed $(VENV)/bin/weed $(CLUSTER)

# With the features of the whole workspace, so that tests and benchmarks find these dependencies built.
SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
$(BIN): ui/dist/index.html $(SOURCES)
	cargo build --locked --workspace --bin rollscope

$(BENCH): ui/dist/index.html $(SOURCES) $(wildcard benches/src/*.rs)
	cargo build --locked --workspace --bins

ui: ui/dist/index.html ## build the page

ui/node_modules/.package-lock.json: ui/package.json ui/package-lock.json
	cd ui && npm install --no-save --no-audit --no-fund
	touch $@

ui/dist/index.html: ui/node_modules/.package-lock.json $(UI_SOURCES)
	cd ui && npm run build
	touch $@

dev: ui/node_modules/.package-lock.json ## the page with hot reload, against a server on 7200
	cd ui && npm run dev

$(VENV)/.ready: tests/requirements.txt
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	touch $@

test: lint lint-python test-rust test-ui test-side-by-side test-python ## every test

# The tests of the page and the user-level tests wait half of the time. The page's output is shown when both are done.
test-side-by-side: $(BIN) $(BENCH) chromium $(VENV)/.ready
	$(MAKE) test-page > target/test-page.log 2>&1 & page=$$!; \
	users=0; $(MAKE) test-e2e || users=$$?; \
	pages=0; wait $$page || pages=$$?; cat target/test-page.log; exit $$((users | pages))

# The programs are built the same way, for the tests that start them: `cargo test` alone leaves out rollscope-bench. With --tests, they have the
# features that tests add to dependencies: without, all our crates were compiled once more (7 minutes).
test-rust: ui/dist/index.html
	$(LINTED) test --locked --workspace
	# The tests of SQL once more, with every query cut into parts for two workers.
	ROLLSCOPE_TEST_WORKERS=2 $(LINTED) test --locked --workspace --test it --quiet -- attributes:: limits:: lookups:: optimizer:: refusals:: rounds:: tables::
	$(LINTED) build --locked --workspace --bins --tests

test-ui: ui/node_modules/.package-lock.json
	cd ui && npm run check && npm test

# The page of the real binary, and the page alone against a mock, in Debian's Chromium.
test-page: $(BIN) $(BENCH) chromium
	cd ui && npm run test:page

.PHONY: chromium
chromium:
	@command -v $${CHROMIUM:-chromium} >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

test-e2e: $(BIN) $(VENV)/.ready
	$(PYTHON) -m pytest -q tests --ignore tests/python

KILLS := 1000
test-torture: $(BIN) $(VENV)/.ready ## kill the server a thousand times under load (KILLS=200 for fewer), and count what it kept
	cd tests && $(CURDIR)/$(PYTHON) torture.py $(KILLS)

.PHONY: test-cluster test-cluster-torture
test-cluster: $(BIN) $(VENV)/.ready ## a lake on bad days (part of make test), and a few kills of its nodes, also with a bad network
	mkdir -p target; $(PYTHON) -m pytest -q tests/test_lake.py > target/test-lake.log 2>&1 & lake=$$!; \
	bad=0; $(PYTHON) -m pytest -q tests/test_cluster.py || bad=$$?; \
	other=0; wait $$lake || other=$$?; cat target/test-lake.log; [ $$((bad | other)) = 0 ]
	cd tests && $(CURDIR)/$(PYTHON) cluster_torture.py 6 --calm 0
	cd tests && $(CURDIR)/$(PYTHON) cluster_torture.py 4 --calm 0 --proxy

test-cluster-torture: $(BIN) $(VENV)/.ready ## kill the nodes of a lake a thousand times under load (KILLS=200 for fewer), and count what it kept
	cd tests && $(CURDIR)/$(PYTHON) cluster_torture.py $(KILLS)

$(VENV)/.python-ready: tests/python/requirements.txt $(VENV)/.ready
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r tests/python/requirements.txt
	touch $@

# The package as users have it, without the program: tests start target/debug/rollscope.
$(VENV)/.package: $(VENV)/.python-ready $(PACKAGE_SOURCES)
	rm -rf python/target/test-wheel
	cd python && $(MATURIN) --quiet --out target/test-wheel
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps python/target/test-wheel/rollscope-*.whl
	touch $@

# What the core does through raw pointers, under valgrind where that is installed: it sees what the tests' own guards cannot.
VALGRIND := $(shell command -v valgrind)
RUNNER := $(if $(VALGRIND),CARGO_TARGET_$(shell echo $(TARGET) | tr a-z- A-Z_)_RUNNER="$(VALGRIND) --quiet --fair-sched=try --error-exitcode=9")

test-python: $(BIN) $(VENV)/.package
	cd python && $(RUNNER) cargo test --quiet --locked -p rollscope-python-raw
	$(PYTHON) -m pytest -q tests/python

lint: ui/dist/index.html
	cd ui && npm run lint
	cargo fmt --all --check
	$(LINTED) test --locked --workspace --no-run

# After the build of the package, and with its profile, so that nothing is compiled twice.
lint-python: $(VENV)/.package
	$(VENV)/bin/ruff check --quiet
	$(VENV)/bin/ruff format --quiet --check python
	cd python && $(CURDIR)/$(PYTHON) -m mypy
	$(PYTHON) -m mypy.stubtest rollscope._core --ignore-disjoint-bases --allowlist python/stubtest.txt
	cd python && cargo fmt --all --check
	cd python && $(WITH_ZIG) cargo-zigbuild clippy --release --locked --target $(TARGET).$(GLIBC) -- -D warnings
	cd python && cargo clippy --locked -p rollscope-python-raw --tests -- -D warnings

# Rust's own linker there can fold functions that compiled to the same code.
FOLD := $(if $(filter x86_64-unknown-linux-gnu,$(TARGET)),ROLLSCOPE_FOLD=1)
release: ui/dist/index.html ## target/release/rollscope, optimised and stripped: what is shipped and measured
	$(FOLD) cargo build --locked --release --workspace --bins

# maturin takes what lies in MODULE.data/scripts as commands. It checks what the extension needs; check_wheel.py checks the program too.
wheel: ui/dist/index.html $(VENV)/.python-ready ## target/wheels/rollscope-*.whl: the package with the program in it
	ROLLSCOPE_FOLD=1 GLIBC=$(GLIBC) CARGO_TARGET_$(shell echo $(TARGET) | tr a-z- A-Z_)_LINKER=$(CURDIR)/python/zig_linker.py \
	$(WITH_ZIG) cargo zigbuild --locked --release --workspace --bins --target $(TARGET).$(GLIBC)
	mkdir -p python/rollscope._core.data/scripts
	cp target/$(TARGET)/release/rollscope python/rollscope._core.data/scripts/rollscope
	strip python/rollscope._core.data/scripts/rollscope
	rm -rf target/wheels
	cd python && $(MATURIN) --compression-level 9 --out ../target/wheels
	rm -r python/rollscope._core.data
	$(PYTHON) python/check_wheel.py target/wheels/rollscope-*.whl

bench-sdk: $(VENV)/.package ## what the Python package costs its caller
	$(PYTHON) python/bench/hot_path.py
	$(PYTHON) python/bench/faults.py

audit: ## licences and known weaknesses of dependencies; needs the network (cargo install cargo-deny)
	cargo deny check
	cargo deny --manifest-path python/Cargo.toml check
	cd ui && npm audit --audit-level=moderate

# A third of the time is for SQL, the rest for the parsers.
MINUTES := 30
fuzz: $(BIN) $(VENV)/.ready ## random input for every parser, and random SQL against DuckDB; MINUTES=600 for longer
	failed=0; python3 fuzz/run.py --minutes $$(($(MINUTES) * 2 / 3)) || failed=1; \
	$(PYTHON) tests/sql_differential.py --minutes $$(($(MINUTES) / 3)) || failed=1; exit $$failed

bench: release chromium $(VENV)/.package ## every figure beside its reference; FULL=1 at full size, TOPICS=ingest for some, RUNS=5 for medians
	target/release/rollscope-bench $(TOPICS)

clean:
	cargo clean
	rm -rf python/target ui/node_modules ui/dist ui/dist-static $(VENV)
