# Everything lives in this folder: the virtual environment in .venv, downloaded data in .cache.
# PYTHON may name another interpreter (3.11 or newer): make demo PYTHON=python3.12

PYTHON ?= python3
export BHC_CACHE ?= $(CURDIR)/.cache/bhc
export MPLCONFIGDIR ?= $(CURDIR)/.cache/matplotlib
BIN := .venv/bin

.PHONY: demo test test-all test-machines test-browser checked studio-picture bench benchmarks paper-mnist paper-cifar questions clean

demo: .venv/.installed
	$(BIN)/bhc demo --force

# Workers do not wait for each other by spinning, and each computes with one thread.
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest

# What one runs while thinking: style, types, and of long grids a few points.
test: checked
	$(PYTEST) --numprocesses auto --dist loadfile -m 'not long'

# All of it.
test-all: checked
	$(PYTEST) --numprocesses auto --dist loadfile

checked: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The numeric part as other processors would round, with one thread and two, in a random order. Some settings alone:
# make test-machines SETTINGS="default avx2"
test-machines: .venv/.installed-dev
	$(BIN)/python -m tools.machines $(SETTINGS)

# The studio in Chromium, which comes from Debian's packages where it is not there yet.
test-browser: .venv/.installed-browser
	command -v chromium > /dev/null || (apt-get update && apt-get install --yes --no-install-recommends chromium fonts-inter)
	$(PYTEST) tests/browser

# The picture in the README: make studio-picture RUN=bhc-demo/run
studio-picture: .venv/.installed-browser
	BHC_STUDIO_RUN=$(RUN) BHC_STUDIO_PICTURES=docs $(BIN)/python -m pytest tests/browser/test_pictures.py -k 'whole and light and 1440'

bench: .venv/.installed
	$(BIN)/python benchmarks/training_step.py
	$(BIN)/python benchmarks/emission.py

# All benchmarks, then the table of docs/performance.md. Some need trained runs for class subsets, as make paper-mnist
# leaves them; others: make benchmarks RUNS="one two". On an idle machine.
RUNS ?= $(wildcard experiments/runs/lenet-*-bhc-cy-seed6)
benchmarks: .venv/.installed-benchmarks bench
	$(BIN)/python benchmarks/deep_emission.py
	$(BIN)/python benchmarks/transformer_emission.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/beside.py
	$(BIN)/python benchmarks/fixed_costs.py
	$(BIN)/python benchmarks/basis.py
ifeq ($(strip $(RUNS)),)
	@echo "no trained runs: new_context, inference, packing and agreement are left out (make benchmarks RUNS=...)"
else
	$(BIN)/python benchmarks/new_context.py $(RUNS)
	$(BIN)/python benchmarks/inference.py $(RUNS)
	$(BIN)/python benchmarks/packing.py $(RUNS)
	$(BIN)/python benchmarks/agreement.py $(RUNS)
endif
	if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
		$(BIN)/python benchmarks/gpu_step.py && $(BIN)/python benchmarks/deep_step.py && \
		$(BIN)/python benchmarks/growth.py --device cuda && \
		if test -n "$(strip $(RUNS))"; then $(BIN)/python benchmarks/new_context.py $(RUNS) --device cuda; fi; \
	else echo "no GPU here: gpu_step, deep_step and the GPU parts of growth and new_context are left out"; fi
	$(BIN)/python benchmarks/table.py

# The paper's MNIST tables: long, and meant for a GPU. What has a result is left alone, so it can be run again.
JOBS ?= 6
paper-mnist: .venv/.installed
	$(BIN)/python experiments/run.py experiments/configs/lenet-*.toml --jobs $(JOBS)
	$(BIN)/python experiments/speed.py lenet-300-100 lenet-5-caffe
	$(BIN)/python experiments/tables.py

# Its CIFAR-10 tables and our ResNet-20 row, likewise. That row starts from public weights, to be put in place first: get
# pretrained_models/resnet20-12fca82f.th of github.com/akamaster/pytorch_resnet_cifar10, then
#   .venv/bin/bhc pretrain --model resnet-20 --data cifar10 --public resnet20-12fca82f.th \
#     --out experiments/runs/resnet-20-public-cifar10.safetensors
JOBS_CIFAR ?= 2
paper-cifar: .venv/.installed
	$(BIN)/python experiments/run.py experiments/configs/vgg-*.toml experiments/configs/resnet-20-*.toml \
		--jobs $(JOBS_CIFAR)
	$(BIN)/python experiments/tables.py

# Questions beyond the paper, likewise.
questions: .venv/.installed
	$(BIN)/python experiments/ask.py experiments/configs/contexts/*.toml
	$(BIN)/python experiments/tables.py

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("bhc needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[studio]'
	touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv/.installed-browser: .venv/.installed-dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[browser]'
	touch $@

.venv/.installed-benchmarks: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[benchmarks]'
	touch $@

clean:
	rm -rf .venv .cache bhc-demo
