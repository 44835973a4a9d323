# Each target is one line that calls the real tool.

VENV := target/venv
DOCS_VENV := target/docs-venv
PYTHON ?= python3
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo nextest run || echo test)

# More options of pytest, such as -m 'not nightly'.
PYTEST_OPTIONS =
# One more than there are cores: programs of the tests wait for each other now and then.
TEST_PROCESSES = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.PHONY: demo test test-rust test-python test-page wheel page page-types lint deny fmt fuzz bench predictions field suites nightly docs python-env page-env docs-env browser terminal neovim extension vscode prometheus

demo: ## build, then explain a bundled real snapshot
	@cargo build --quiet --bin oomph
	@target/debug/oomph report fixtures/zoo/leak_infer_outputs.pickle.xz

test: test-page test-rust test-python ## every test; sets up what it needs

test-rust: ## tests of the crates
	cargo build --workspace
	cargo $(NEXTEST) --workspace
	cargo test --quiet --doc --workspace

test-python: python-env page-env browser terminal prometheus ## tests of the command, the wheel, the recorder and the page
	cargo build --workspace
	MATURIN_PEP517_ARGS="--profile dev" $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .
	OOMPH=target/debug/oomph $(VENV)/bin/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST_OPTIONS) tests/python

wheel: ## the wheel for this machine, in dist/
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

page: page-env page-types ## the page of `oomph view`, from web/ into crates/viewer/assets
	cd web && npx --no-install tsc --noEmit && node build.mjs

page-types: ## the TypeScript of the page's questions and answers, from crates/viewer
	UPDATE_PROTOCOL=1 cargo test --quiet --workspace --lib typescript

test-page: page-env ## unit tests of the page
	cd web && npx --no-install tsc --noEmit --project tests && node test.mjs

lint: python-env page-env editors/vscode/node_modules/ready ## formatting, lints and types, as the gate checks them
	cargo fmt --all --check
	cd web && npx --no-install biome ci .
	cd editors/vscode && ../../web/node_modules/.bin/biome ci . && npm --silent run check
	cargo clippy --workspace --all-targets -- -D warnings
	$(VENV)/bin/python tests/other_systems.py
	$(VENV)/bin/python -m ruff format --quiet --check .
	$(VENV)/bin/python -m ruff check --quiet .
	$(VENV)/bin/python -m mypy python/oomph

deny: ## licenses, duplicates, sources and advisories of the dependencies (needs cargo-deny)
	cargo deny check

fmt: python-env page-env ## format everything
	cargo fmt --all
	$(VENV)/bin/python -m ruff check --quiet --fix --select I .
	$(VENV)/bin/python -m ruff format --quiet .
	cd web && npx --no-install biome check --write .
	cd editors/vscode && ../../web/node_modules/.bin/biome check --write .

fuzz: ## the fuzz targets, a minute each (make fuzz SECONDS=600 for longer)
	fuzz/run.sh $(or $(SECONDS),60)

bench: ## side by side with the peers; writes bench/results/DATE.md
	cargo build --profile dist --bin oomph --example replay
	$(PYTHON) bench/run.py

predictions: python-env ## predicted and real peaks of every recorded program, as a table
	cargo build --release --workspace
	$(VENV)/bin/python bench/predict.py

field: python-env ## programs bare and recorded, compared; on the emulated GPU (make field GPU=real RUNS=3 on a real one)
	cargo build --workspace
	$(VENV)/bin/python field/run.py --gpu $(or $(GPU),h200-emulated) --runs $(or $(RUNS),1) --jobs $(or $(JOBS),2) --markdown target/field.md

suites: python-env ## PyTorch's own tests of CUDA memory on the emulated GPU (make suites PYTORCH=FOLDER, a checkout of the release in use)
	cargo build --workspace
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r field/requirements.txt
	$(VENV)/bin/python field/suites.py $(PYTORCH)

nightly: python-env ## the allocator model against PyTorch's real allocators of sixteen releases: thousands of fresh cases
	cargo build --release --bin oomph
	$(VENV)/bin/python oracle/build.py
	$(VENV)/bin/python oracle/nightly.py --cases $(or $(CASES),200)
	$(VENV)/bin/python oracle/nightly.py --cases $(or $(CASES),200) --kind changing
	$(VENV)/bin/python oracle/nightly.py --cases $(or $(CASES),200) --kind switching

docs: docs-env ## the documentation, into target/site; any warning is an error
	cargo build --quiet --bin oomph
	OOMPH=target/debug/oomph $(DOCS_VENV)/bin/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --quiet --strict

python-env: $(VENV)/ready

page-env: web/node_modules/ready

docs-env: $(DOCS_VENV)/ready

browser: ## Chromium for the tests of the page
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium)

terminal: ## tmux for the tests of `oomph watch`
	command -v tmux >/dev/null || (apt-get update -qq && apt-get install -qq -y --no-install-recommends tmux)

neovim: ## Neovim for the nightly test of `oomph server`
	command -v nvim >/dev/null || (apt-get update -qq && apt-get install -qq -y --no-install-recommends neovim)

extension: editors/vscode/node_modules/ready ## the extension for VS Code, in dist/
	mkdir -p dist && npm --prefix editors/vscode run --silent package

vscode: extension browser ## the extension, and VS Code for its nightly test
	editors/vscode/code_server.sh target/code-server

prometheus: ## Prometheus for the tests of the exporter; unpacked only, because its package starts a service
	command -v prometheus >/dev/null || test -x target/prometheus/usr/bin/prometheus || (mkdir -p target && cd target && apt-get update -qq && apt-get download -qq prometheus && dpkg -x prometheus_*.deb prometheus)

$(VENV)/ready: tests/python/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/python/requirements.txt
	touch $@

$(DOCS_VENV)/ready: docs/requirements.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	touch $@

%/node_modules/ready: %/package-lock.json
	npm --prefix $* ci --no-audit --no-fund --loglevel=error
	touch $@
