# Every target sets up what it needs, in .venv and .cache, and nothing else on the machine.
#
#   make demo     train a real model on 4 ranks, break it, and name the culprit
#   make check    the tests that need no torch, no process and no server: a minute
#   make test     all tests; those of a measuring program in lab/ where that has changed of late
#   make test-lab what only measures: benchmarks, chaos, evaluation, scale
#   make test-cuda  what only a GPU can show; says so and does nothing where there is none
#   make test-install   wheel and sdist in fresh environments, with each extra; the README's commands from the wheels; needs Go
#   make test-oldest    the hooks with the oldest torch that is supported; TEST=tests/instrumentation for all of it
#   make test-python-hot-path   the hooks with the hot path in Python, as the wheel for any platform has it
#   make test-pythons   what needs no torch, under every supported version of Python that is here
#   make test-plays   every play of the rules in every version of every engine, by every second path: an hour of a processor
#   make test-all   what a release needs: test, plays, installations, both ends of torch and Python, both hot paths, the field
#   make field    loops of real projects and frameworks under laggard, beside a stopwatch: TEST=tests/field/test_shapes.py
#   make coverage lines that the tests run, by package; fails below 90 %: TEST="tests/cli tests/exporter" for a part
#   make mutants  small mistakes in the parts that must not be wrong; fails where tests miss more than 15 % of them
#   make bench    what laggard costs, beside its peers; writes docs/benchmarks.md, and what other documents state of it
#   make evaluate how often the rules are right, on simulated runs: SEEDS="1 2" JSON=accuracy.json; needs Go
#   make chaos    break real jobs, and laggard under a job, and hold the alerts against it: CHAOS="--faults killed storage"
#   make scale    what thousands of ranks cost a Prometheus, and whether it is right in time: SCALE="--ranks 1000 10000"
#   make rules    write the rule pack from its source, scripts/rules/source
#   make dashboards   write the Grafana dashboards, after a change of their builders
#   make pictures     and their pictures in docs/images; needs npm and chromium
#   make docs     the documentation as a site, in build/site; a broken link fails; needs Python 3.11
#   make release  wheel, sdist, Prometheus' wheels, the pack, bill of materials, licences and checksums, in dist/; needs Go
#   make lint     formatter, linter, strict types, import layers
#   make clean    remove what was set up

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# The same for the oldest supported torch, in an environment of its own.
OLDEST := .venv-oldest
# The same for frameworks that only make field runs.
FIELD := .venv-field
# Flags for the demo, such as DEMO="--json demo.json" or DEMO=--keep.
DEMO ?=
# Flags and checks for test-cuda, such as CUDA="--json cuda.json events copies".
CUDA ?=
# Flags for the benchmarks of overhead: BENCH=--quick for one short round. And which of the figures are made.
BENCH ?=
FIGURES ?= overhead verdicts diagnosis cost local
# Flags for the chaos suite, such as CHAOS="--placements 3 --json chaos.json".
CHAOS ?=
# Flags for the measurement of scale, such as SCALE="--ranks 10000 --json scale.json".
SCALE ?=
# Seeds of the evaluation, the file for its figures, and further flags, such as EVALUATE="--sizes 8 --scenarios healthy".
SEEDS ?= 1 2
JSON ?= accuracy.json
EVALUATE ?=

# What laggard is measured beside.
PEERS := scripts/tools/install.sh $(VENV) --constraint constraints.txt --editable '.[otel,exporter,cli,dev,bench]'

# uv leaves modules uncompiled, so each process would compile torch again.
unexport PYTHONDONTWRITEBYTECODE

export PATH := $(CURDIR)/$(BIN):$(CURDIR)/.cache/tools/bin:$(PATH)

.PHONY: demo check test test-lab test-with-deadlines test-without-deadlines test-cuda test-install test-oldest test-python-hot-path test-compile-python test-pythons test-plays test-all field coverage mutants bench bench-overhead bench-verdicts \
	bench-diagnosis bench-cost bench-local evaluate chaos scale \
	dashboards rules pictures docs release lint clean servers tools

demo: $(INSTALLED) servers
	laggard demo $(DEMO)

# Tests that wait for real servers leave a processor idle, so there are four processes more than processors.
BESIDE := --numprocesses=$(shell expr $$(nproc) + 4) --dist=loadgroup
TOGETHER := -m "not timed and not patient and not field" $(BESIDE)
LAB_TESTS := $(patsubst %,tests/%,benchmarks chaos evaluation scale)

# Those that have the machine to themselves. They come first: a new environment's modules are compiled by their process, and not
# by all of those after them at once.
marked = -m "$(1) and not field" $(shell grep --recursive --files-with-matches --include='test_*.py' 'mark\.$(1)' tests)
TIMED := $(call marked,timed)

# Hours of simulated time with many versions of promtool, on what those leave idle: they may have to wait for long.
PATIENT := $(call marked,patient) --numprocesses=$(shell nproc) --dist=loadgroup --timeout=1800

# Real processes that wait for each other are at the mercy of the machine: what fails is tried once more, and is listed.
REPEAT := --reruns=1 -rR

# A test that wants torch or a process is skipped where it does, and what it has made by then is left behind.
check: $(INSTALLED)
	FUZZ_EXAMPLES=10 pytest --check -m "not timed and not patient and not field" --numprocesses=$(shell nproc) --dist=worksteal \
		-W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning \
		--ignore=tests/field $(LAB_TESTS:%=--ignore=%) tests

test: $(INSTALLED) servers tools
ifdef TEST
	pytest $(TEST)
else
	@$(MAKE) --no-print-directory --jobs=2 test-with-deadlines test-without-deadlines
endif

test-with-deadlines:
	pytest $(REPEAT) $(TIMED)
	pytest $(REPEAT) $(TOGETHER) $$(scripts/tests/unchanged_labs.sh)

test-lab: $(INSTALLED) servers tools
	pytest $(REPEAT) -m "not field and not timed" $(BESIDE) $(LAB_TESTS)

# Before them all tests are collected, once: in a fresh clone each process of those side by side would compile all modules.
test-without-deadlines:
	@mkdir -p .cache
	@scripts/tests/patiently.sh pytest --collect-only tests >.cache/collected.log 2>&1 || { cat .cache/collected.log; exit 1; }
	@scripts/tests/patiently.sh pytest $(REPEAT) $(PATIENT) >.cache/patient.log 2>&1; status=$$?; cat .cache/patient.log; exit $$status

test-plays: $(INSTALLED) servers tools
	EVERY_PATH=1 pytest tests/rules/test_promtool.py tests/rules/test_vmalert.py --numprocesses=$(shell nproc) --timeout=3600

test-all: export EVERY_CASE = 1
test-all: test test-lab test-plays test-python-hot-path test-pythons test-install field
	$(MAKE) test-oldest TEST=tests/instrumentation

test-cuda: $(INSTALLED)
	PYTHONPATH=. python tests/instrumentation/programs/cuda_check.py $(CUDA)
	python tests/instrumentation/programs/cuda_models.py
	torchrun --nproc-per-node $$(python -c 'import torch; print(max(2, torch.cuda.device_count()))') \
		tests/instrumentation/programs/cuda_ranks.py

test-install: $(INSTALLED)
	INSTALL=all pytest tests/test_install.py tests/test_readme_local.py

# What meets torch itself, but for the compiler, whose tests take as long again.
MEETS_TORCH := $(patsubst %,tests/instrumentation/test_%.py,hooks parallelism loops backward optimizers scaler dataloader transfer \
	device device_clock device_ddp memory checkpoint failures)

test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest $(REPEAT) $(or $(TEST),$(TOGETHER) $(MEETS_TORCH))

# And the compiler, for which wrappers must be functions of Python.
test-python-hot-path: test-compile-python
	LAGGARD_HOT_PATH=python pytest $(REPEAT) $(TOGETHER) $(patsubst %,tests/instrumentation/test_%.py,hooks loops backward optimizers scaler failures)

test-compile-python: $(INSTALLED)
	LAGGARD_HOT_PATH=python pytest $(REPEAT) $(TOGETHER) tests/instrumentation/test_compile.py

test-pythons:
	scripts/tests/test_pythons.sh $(TEST)

# The shapes of loops, and with them the frameworks that have them. One at a time: each is beside a stopwatch.
field: $(FIELD)/.installed servers
	$(FIELD)/bin/python -m pytest $(REPEAT) --timeout=900 $(or $(TEST),tests/field)

# As a part of the suite tells little of the whole, the limit is not held then.
coverage: $(INSTALLED) servers tools
	rm -rf .cache/coverage && mkdir -p .cache/coverage
ifdef TEST
	-coverage run -m pytest $(REPEAT) $(TEST)
else
	-coverage run -m pytest $(REPEAT) $(TOGETHER)
	-coverage run -m pytest $(REPEAT) $(TIMED)
	-EVERY_PATH=1 coverage run -m pytest $(REPEAT) $(PATIENT) --deselect=tests/rules/test_vmalert.py
endif
	coverage combine --quiet
	python scripts/tests/coverage_by_package.py
	coverage report $(if $(TEST),--fail-under=0)

mutants: $(INSTALLED)
	PYTHONPATH=. python scripts/tests/mutants.py $(MUTANTS)

# Every published figure beside its peers, one after the other. Those of accuracy and of scale are made by evaluate and scale.
bench: $(FIGURES:%=bench-%)

bench-overhead: $(INSTALLED)
	$(PEERS)
	python -m lab.benchmarks $(BENCH)

bench-verdicts: $(INSTALLED)
	scripts/tools/build_rule_engine.sh
	python -m lab.benchmarks.verdicts --seeds 41 --sizes 2 4 8 --document docs/accuracy.md

bench-diagnosis: $(INSTALLED) servers
	$(PEERS)
	python -m lab.benchmarks.diagnosis --document docs/comparison.md

bench-cost: $(INSTALLED)
	scripts/tools/build_rule_engine.sh
	python -m lab.evaluation.cost --document docs/accuracy.md --picture docs/cost.svg

bench-local: $(INSTALLED) servers
	python -m lab.benchmarks.local_run
	python -m lab.benchmarks.local_steps

evaluate: $(INSTALLED)
	scripts/tools/build_rule_engine.sh
	python -m lab.evaluation --seeds $(SEEDS) --json $(JSON) $(EVALUATE)

chaos: $(INSTALLED) servers
	python -m lab.chaos $(CHAOS)

scale: $(INSTALLED)
	scripts/tools/build_rule_engine.sh
	python -m lab.scale --program "$$(ls .cache/tools/prometheus-3.* | sort -V | tail -n 1)" $(SCALE)

rules: $(INSTALLED)
	python scripts/rules/make_rules.py
	python scripts/docs/generate_docs.py

dashboards: $(INSTALLED)
	python -m dashboards

pictures: dashboards
	scripts/tools/build_rule_engine.sh
	pytest tests/dashboards/test_schema.py
	python -m tests.dashboards.preview docs/images

docs: $(INSTALLED)
	python scripts/docs/generate_docs.py
	NO_MKDOCS_2_WARNING=1 mkdocs build
	@echo "build/site/index.html"

release: $(INSTALLED)
	python scripts/release/prometheus_wheel.py
	python scripts/release/release.py

lint: $(INSTALLED)
	ruff format --check
	ruff check
	pyright
	lint-imports

servers:
	scripts/tools/fetch_servers.sh

# Newer releases for the tests of the rules, the Collector, Thanos, Mimir and Slurm; where they cannot be had, those tests
# say so and are skipped. Two at a time: while one is downloaded or linked, another one is compiled.
TOOLS := build_mimir build_collector build_rule_engine build_kubernetes_tools build_thanos fetch_tools fetch_slurm

tools:
	@$(MAKE) --no-print-directory --jobs=2 $(TOOLS:%=tool-%)

tool-%:
	-scripts/tools/$*.sh

COMPILED := hatch_build.py $(wildcard instrumentation/laggard/_*.c)

$(INSTALLED): pyproject.toml constraints.txt $(COMPILED)
	$(PYTHON) -m venv $(VENV)
	scripts/tools/install.sh $(VENV) --constraint constraints.txt --editable '.[otel,exporter,cli,dev]'
	$(BIN)/python hatch_build.py
	touch $(INSTALLED)

$(OLDEST)/.installed: pyproject.toml constraints.txt constraints-oldest.txt $(COMPILED)
	$(PYTHON) -m venv $(OLDEST)
	grep -v '^torch==' constraints.txt | cat - constraints-oldest.txt > $(OLDEST)/constraints.txt
	scripts/tools/install.sh $(OLDEST) --constraint $(OLDEST)/constraints.txt --editable '.[otel,exporter,cli,dev]'
	$(OLDEST)/bin/python hatch_build.py
	$(OLDEST)/bin/python -m pytest --collect-only $(MEETS_TORCH) >/dev/null
	touch $@

# DeepSpeed asks torch for its version while it is built, so torch is there before.
$(FIELD)/.installed: pyproject.toml constraints.txt constraints-field.txt $(COMPILED)
	$(PYTHON) -m venv $(FIELD)
	scripts/tools/install.sh $(FIELD) --constraint constraints.txt --editable '.[otel,exporter,cli,dev]'
	scripts/tools/install.sh $(FIELD) --no-build-isolation --constraint constraints.txt --constraint constraints-field.txt \
		--editable '.[otel,exporter,cli,dev,field]'
	$(FIELD)/bin/python hatch_build.py
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(FIELD) .cache build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis
