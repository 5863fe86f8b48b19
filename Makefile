# Everything a person does with this repository. Each target sets up what it needs; nothing has to be installed before
# but Python 3.11 or newer, make and git.

PYTHON := .venv/bin/python

# Another active environment, or modules from elsewhere, must not leak into what runs here.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
# Test modules are rewritten for their asserts; where that may not be kept, every process does it anew (7 s).
unexport PYTHONDONTWRITEBYTECODE
export PYTHONNOUSERSITE := 1

# The tests that compare the tree with the layout's rules and the generated pages with their sources; they take seconds.
READ_ONLY_TESTS := tests/test_architecture.py $(wildcard tests/telemetry/test_catalog.py tests/telemetry/test_record_reference.py tests/proxy/test_config*.py tests/proxy/test_command_reference.py)
READ_ONLY_TESTS += $(wildcard tests/dashboards/test_grafana.py tests/dashboards/test_rules.py)

.DEFAULT_GOAL := help
.PHONY: help demo demo-vllm compare-vllm test test-vllm test-vllm-all check fix docs bench image-check compiled test-compiled chaos soak signals fuzz clean runtime dev

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1@\2/p' Makefile | while IFS=@ read -r name text; do printf '%-16s %s\n' "$$name" "$$text"; done

demo: runtime ## Run the gateway with simulated workers and light traffic; prints the URLs to try
	@$(PYTHON) -m simulator.demo $(ARGS)

demo-vllm: runtime ## The same with a real vLLM on the CPU and a tiny model (the first time: 5 minutes, 2.5 GB)
	@deploy/vllm-cpu/setup.sh
	@$(PYTHON) deploy/vllm-cpu/demo.py $(ARGS)

compare-vllm: runtime ## A real vLLM on the CPU beside a simulated worker fitted to it: TTFT and TPOT of both (4 minutes)
	@deploy/vllm-cpu/setup.sh
	@$(PYTHON) deploy/vllm-cpu/compare.py $(ARGS)

test: check ## Run everything that decides whether a change may land (ARGS='-k …' reaches pytest)
	@deploy/setup/test_tools.sh
	@deploy/setup/tests.sh $(ARGS)
	$(if $(strip $(ARGS)),,@! deploy/setup/can_compile.sh >/dev/null || $(MAKE) --no-print-directory test-compiled)

test-vllm: dev ## Only the tests against a real vLLM, which `make test` runs too (leave out: ARGS="-m 'not vllm'")
	@$(PYTHON) -m pytest tests/vllm $(ARGS)

test-vllm-all: dev ## A real vLLM with each set of flags that changes its answers: its figures beside the gateway's (6 minutes)
	@deploy/vllm-cpu/setup.sh
	@$(PYTHON) -m tests.vllm $(ARGS)

check: dev ## Check without writing: format, lint, types, generated pages, import arrows
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m mypy
	@$(PYTHON) -m pytest -q $(READ_ONLY_TESTS)

fix: dev ## Mend what can be mended: format, lint, generated pages
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .
	@$(PYTHON) -m telemetry.reference
	@$(PYTHON) -m dashboards.grafana
	@$(PYTHON) -m telemetry.record_reference
	@$(PYTHON) -m proxy.config.reference
	@$(PYTHON) -m dashboards.rules
	@$(PYTHON) deploy/helm/render.py
	@$(PYTHON) -m proxy.command_reference

docs: dev ## Make a site of the documentation in build/site; a broken link is an error
	@$(PYTHON) -m sphinx -q -W --keep-going -E -b html -c deploy/site docs build/site
	@echo "build/site/index.html"

bench: dev ## Measure the cost of the gateway (ARGS=… reaches the benchmark)
	@$(PYTHON) -m benchmarks $(ARGS)

image-check: ## Build the image and run it with a simulated worker (2 minutes; docker or ENGINE=podman; ARGS='--build-arg PYTHON=…')
	@deploy/container/check.sh $(ARGS)

compiled: dev ## A copy in .cache/compiled whose serving path is C, as in the image (2 minutes; needs a C compiler)
	@rm -rf .cache/compiled build/lib* build/bdist* build/temp*
	@RIDGELINE_COMPILED=1 $(PYTHON) -m pip install --quiet --no-deps --target .cache/compiled .
	@echo "cd .cache/compiled && ../../$(PYTHON) -m proxy.cli serve --config FILE"

test-compiled: compiled ## The tests of the serving path against that copy, which `make test` runs too (4 minutes)
	@deploy/setup/compiled_tests.sh $(ARGS)

chaos: dev ## Kill, hang, slow and drain workers under load and check every answer (5 minutes; ARGS='--seconds 3600 --seed 7')
	@$(PYTHON) -m tests.chaos $(ARGS)

soak: dev ## The same with reloads and kills of the gateway's own processes: books agree, memory is flat (20 minutes; ARGS='--seconds 300 --seed 7')
	@$(PYTHON) -m tests.soak $(ARGS)

signals: dev ## Signals and new configurations at random moments, gateway after gateway (5 minutes; ARGS='--seconds 60 --seed 7')
	@$(PYTHON) -m tests.soak.signals $(ARGS)

fuzz: dev ## Look for inputs that the gateway and a second reader take differently (a minute each; ARGS='--target sse --seconds 600')
	@$(PYTHON) -c 'import atheris' 2>/dev/null || $(PYTHON) -m pip install --quiet --editable '.[fuzz]'
	@$(PYTHON) -m tests.fuzz $(ARGS)

clean: ## Remove everything that was made here: environment, caches, build results
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist ./*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

runtime dev:
	@deploy/setup/venv.sh $@
