# The short way to everything. `make test` and `make demo` install what is missing; the other targets do not.
# make        build/cpu/tensorfold                       make test   build, run every test, print the counts
# make cuda   build/cuda/tensorfold, with the CUDA backend (needs nvcc 12.5 or newer)
# make demo   fetch a small model, answer a question     make fuzz   fuzz every parser (FUZZ_SECONDS each, default 60)
# make clean  remove build/ (the Python packages stay in .venv)

MODEL_FOLDER := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tensorfold/SmolLM2-135M-Instruct
FUZZ_SECONDS ?= 60

.PHONY: build cuda test demo fuzz clean

build: build/cpu/build.ninja
	@cmake --build build/cpu

build/cpu/build.ninja: CMakePresets.json
	@command -v cmake >/dev/null && command -v ninja >/dev/null || \
	  { echo "cmake or ninja is missing: run tools/install_dependencies.sh first"; exit 1; }
	@cmake --preset cpu

cuda:
	@tools/install_dependencies.sh build
	@cmake --preset cuda
	@cmake --build build/cuda

test:
	@tools/install_dependencies.sh build test venv
	@$(MAKE) --no-print-directory build
	@tools/ci/run_tests.sh build/cpu

demo: $(MODEL_FOLDER)/config.json
	@tools/install_dependencies.sh build
	@$(MAKE) --no-print-directory build
	@build/cpu/tensorfold run demo "What is the capital of France, and what is it known for?"
	@echo
	@echo "Serve it:  build/cpu/tensorfold serve demo"

# Present once it was converted whole: the converter renames the finished folder into place.
$(MODEL_FOLDER)/config.json:
	@tools/install_dependencies.sh build venv
	@tools/fetch_demo_model.sh "$(MODEL_FOLDER)"

fuzz:
	@tools/install_dependencies.sh build fuzz
	@tools/ci/fuzz.sh $(FUZZ_SECONDS)

clean:
	rm -rf build
