# Two commands for a newcomer: `make demo` and `make test`. Everything else serves them.
PYTHON ?= python3
VENV := .venv
# The released bundles, each a distribution; a source distribution of skindx has none.
BOXES := $(patsubst %/pyproject.toml,%,$(wildcard models/*/pyproject.toml))
BIN := $(VENV)/bin

# TORCH=cpu: torch and torchvision for CPUs, without hashes, and nothing of CUDA. The environment
# remembers it; TORCH= takes those of the lock again.
TORCH ?= $(shell cat $(VENV)/.skindx-torch 2>/dev/null)
READY := $(VENV)/.skindx-ready$(addprefix -,$(TORCH))
# `make demo` installs no more of the lock than it needs, unless everything is there.
DEMO_READY := $(if $(wildcard $(READY)),$(READY),$(VENV)/.skindx-demo$(addprefix -,$(TORCH)))
ifneq ($(filter-out cpu,$(TORCH)),)
$(error TORCH=$(TORCH) is unknown: write TORCH=cpu, or nothing)
endif

.PHONY: demo test test-lab test-methods test-all test-long test-mutants check docs docs-links sbom licences advisories dist release lock install clean screenshots

demo: $(DEMO_READY)
	$(BIN)/skindx demo --out runs/demo

# Three workers, a file at a time, so that what a file shares is made once: much of the time a test
# waits for ranks, a server or a browser that it started. A worker that crashes ends the run with the
# test's name: pytest-xdist cannot give a crashed worker's files to another one, and hangs. The JUnit
# file has the processor time of each test; `make check` compares it with the budgets of folders.
WORKERS ?= 3
test: install browser network proxies clinic
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
	  --junit-xml build/junit.xml

# The lab's tests, with each benchmark at its smallest, which takes minutes; what passed is noted, so
# that .ci/run leaves it out until something that it stands on changes.
test-lab: install browser network proxies clinic
	$(BIN)/python -m pytest benchmarks/tests -m "not long and not gpu" \
	  -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
	$(BIN)/python .ci/tested.py note lab

# The tests of skindx-methods; what passed is noted too.
test-methods: install network
	$(BIN)/python -m pytest methods/tests \
	  -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
	$(BIN)/python .ci/tested.py note methods

test-all: test test-methods test-lab

# Soaks, faults and real clusters, and every property on more examples.
test-long: install browser network proxies clinic launchers
	$(BIN)/python -m pytest tests methods/tests benchmarks/tests -m "long or hypothesis" \
	  --hypothesis-profile long --timeout 3600

# Plants faults that tests must notice, one after the other, in half an hour; for some: MUTANTS="NAME".
test-mutants: install
	$(BIN)/python tests/mutants.py $(if $(MUTANTS),"$(MUTANTS)")

# The guide as a website in build/docs; a warning is an error, and so is a stale figure.
docs: install
	$(BIN)/python docs/render.py --check
	$(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going --quiet docs build/docs

# Asks every link of the guide to the outside; needs the network.
docs-links: docs
	$(BIN)/sphinx-build --builder linkcheck --quiet docs build/links

# What the lock installs, as a software bill of materials: dist/skindx.cdx.json (CycloneDX).
sbom: install
	$(BIN)/python .ci/sbom.py requirements.lock dist/skindx.cdx.json

# The licence of every pin, for NOTICE, the guide and the bill; after `make lock`. WHEELS names a
# folder with the wheels of packages that are only for other platforms, where one is new.
WHEELS ?=
licences: install
	$(BIN)/python .ci/licences.py $(WHEELS)
	$(BIN)/python docs/render.py

# Asks the package index which pins have known vulnerabilities; needs the network. No list of them is
# kept here: it would be out of date on the next day.
advisories: install
	$(BIN)/uv tool run pip-audit --strict --disable-pip --require-hashes --requirement requirements.lock

# Wheel and sdist of skindx, skindx-methods, skindx-bench and the bundles in models; built twice from the same
# commit they are the same to the byte.
dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
dist: install
	$(BIN)/python -m hatchling build -d dist
	cd methods && ../$(BIN)/python -m hatchling build -d ../dist
	cd benchmarks && ../$(BIN)/python -m hatchling build -d ../dist
	set -e; for box in $(BOXES); do (cd $$box && $(CURDIR)/$(BIN)/python -m hatchling build -d $(CURDIR)/dist); done

# Everything of a release but the upload: FLAGS=--dry lists it, --long adds the long tests, --offline
# leaves the links out.
release: install
	$(BIN)/python .ci/release.py $(FLAGS)

# The images of docs/images: the released model's page and case book, with its first example.
screenshots: install browser
	$(BIN)/python docs/screenshots.py ham10000

# The cheap checks: sizes and names, style, types, who may import whom, and the guide.
check: install docs
	$(BIN)/python .ci/structure.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

install: $(READY)

# The lock pins every package by hash; uv follows it in seconds. Bytecode is compiled here, once:
# without it each process takes seconds to compile torch's sources.
$(VENV)/.skindx-demo$(addprefix -,$(TORCH)): PART := data train detect serve hatchling uv
$(READY) $(VENV)/.skindx-demo$(addprefix -,$(TORCH)): requirements.lock pyproject.toml benchmarks/pyproject.toml methods/pyproject.toml skindx/__init__.py $(BOXES:%=%/pyproject.toml)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "skindx needs Python 3.11 or newer; set PYTHON=/path/to/python3")'
	$(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/.skindx-*
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/python .ci/lock_part.py $(if $(TORCH),--no-torch) $(PART) > $(VENV)/.skindx-lock
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes $(VENV)/.skindx-lock
ifeq ($(TORCH),cpu)
	@echo "TORCH=cpu: torch and torchvision come from PyTorch's index for CPUs, by version and not by hash"
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --no-deps --torch-backend cpu \
	  $$(grep -oE '^torch(vision)?==[^ ]+' requirements.lock) || \
	  { echo "no CPU wheels can be fetched: see the error above, or leave out TORCH=cpu" >&2; exit 1; }
endif
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation \
	  --editable . --editable ./methods --editable ./benchmarks $(BOXES:%=--editable ./%)
	$(BIN)/python -m compileall -q skindx methods benchmarks
	$(BIN)/skindx doctor
	echo $(TORCH) > $(VENV)/.skindx-torch
	touch $@

# Browser tests need chromium; where it cannot be installed they skip and say so.
.PHONY: browser
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || \
	  echo "chromium is not here and cannot be installed: browser tests will skip"

# The emulated cluster needs ip and tc; where they cannot be installed its tests skip and say so.
.PHONY: network
network:
	@{ command -v ip && command -v tc; } >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends iproute2 >/dev/null; } || \
	  echo "ip and tc are not here and cannot be installed: tests of the emulated cluster will skip"

# Tests of sub-paths need nginx and Caddy; where they cannot be installed they skip and say so.
# RUNLEVEL=1: Debian would start both as services.
.PHONY: proxies
proxies:
	@PATH=$$PATH:/usr/sbin; { command -v nginx && command -v caddy; } >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends nginx-light caddy >/dev/null; } || \
	  echo "nginx and caddy are not here and cannot be installed: tests of proxies will skip"

# Tests of DICOM archives need Orthanc, dcmtk and dicom3tools; without them they skip and say so.
# RUNLEVEL=1: Debian would start Orthanc as a service.
.PHONY: clinic
clinic:
	@PATH=$$PATH:/usr/sbin; { command -v Orthanc && command -v storescu && command -v dciodvfy && \
	  ls /usr/share/orthanc/plugins/libOrthancDicomWeb.so; } >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends orthanc orthanc-dicomweb dcmtk dicom3tools >/dev/null; } || \
	  echo "Orthanc, dcmtk and dicom3tools are not here and cannot be installed: tests of DICOM archives will skip"

# Long tests of launchers need Slurm, sshd, pdsh and PostgreSQL; without them they skip and say so.
# RUNLEVEL=1: Debian would start all of them as services.
.PHONY: launchers
launchers:
	@PATH=$$PATH:/usr/sbin; { command -v slurmctld && command -v munged && command -v sshd && command -v pdsh && \
	  ls /usr/lib/postgresql/*/bin/initdb; } >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends slurm-wlm munge openssh-server pdsh postgresql >/dev/null; } || \
	  echo "Slurm, sshd, pdsh and PostgreSQL are not here and cannot be installed: long tests of launchers will skip"

# What the check of a GPU needs, for a machine without a network: at most 64 MiB of wheels.
GPU_WHEELS := gpu-wheels
.PHONY: gpu-wheels gpu-check gpu-release
gpu-wheels: install
	$(BIN)/python -m skindx_bench.devices.wheels fill $(GPU_WHEELS)

# Needs a GPU and a Python with torch (PYTHON=...), no network and no `make install`; takes at most
# ten minutes. Writes $(GPU_OUT)/gpu-NAME.json, for docs/measured. GPU_SET="--set fake=true" tries
# it on a CPU.
GPU_OUT ?= runs/gpu-check
gpu-check: LAB := $(CURDIR):$(CURDIR)/methods:$(CURDIR)/benchmarks
gpu-check: GPU_SITE := $(GPU_OUT)/site
gpu-check:
	-PYTHONPATH=$(LAB) $(PYTHON) -m skindx_bench.devices.wheels install $(GPU_WHEELS) $(GPU_SITE)
	PYTHONPATH=$(LAB):$(abspath $(GPU_SITE)) $(PYTHON) -m skindx_bench gpu \
	  --set folder=$(GPU_OUT) $(GPU_SET)

# What takes a GPU longer, in slices of at most LIMIT_S seconds: SLICE=1 tests, 2 trainer, 3 networks
# out of fold and whole, 4 large batches. The same command goes on, also where $(RELEASE_OUT)/state-N
# was brought to. GPU_SET="--set prepare=true" writes what a slice needs of datasets and weights.
SLICE ?= 1
LIMIT_S ?= 540
RELEASE_OUT ?= runs/gpu-release
gpu-release: LAB := $(CURDIR):$(CURDIR)/methods:$(CURDIR)/benchmarks
gpu-release: GPU_SITE := $(RELEASE_OUT)/site
gpu-release:
	-PYTHONPATH=$(LAB) $(PYTHON) -m skindx_bench.devices.wheels install $(GPU_WHEELS) $(GPU_SITE)
	PYTHONPATH=$(LAB):$(abspath $(GPU_SITE)) $(PYTHON) -m skindx_bench gpu-release \
	  --set slice=$(SLICE) --set limit_s=$(LIMIT_S) --set folder=$(RELEASE_OUT) $(GPU_SET)

lock:
	$(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --python-version 3.11 --extra all pyproject.toml --upgrade -o requirements.lock

clean:
	rm -rf $(VENV) dist build
