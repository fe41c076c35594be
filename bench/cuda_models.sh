#!/usr/bin/env bash
# Speed of whole models on a CUDA device: random weights in the shapes of published ones, made on the spot, one after the
# other. Every share is of the copy bandwidth measured in the same run. Usage: bench/cuda_models.sh [BUILD_FOLDER] [NAME...]
set -euo pipefail
cd "$(dirname "$0")/.."
built=${1:-build/cuda}
shift || true
models=("$@")
[ ${#models[@]} != 0 ] || models=(Qwen3.8-27B Qwen3.6-35B-A3B NVIDIA-Nemotron-3-Nano-30B-A3B gpt-oss-20b)
# In memory where that has room for the largest (20 GB), else on disk; TENSORFOLD_BENCH_DIR says where instead.
room_kb=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)
parent=$([ "${room_kb:-0}" -gt 24000000 ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")
folder=$(mktemp -d -p "${TENSORFOLD_BENCH_DIR:-$parent}")
trap 'rm -rf "$folder"' EXIT

for model in "${models[@]}"; do
  echo "== $model, 4 bits"
  "$built/tensorfold" demo create "$folder/$model" --like "$model" --quant 4bit --quiet
  bench() { "$built/tensorfold" bench "$1" "$folder/$model" --device cuda --quiet --context 40960 --max-sequences 32 "${@:2}"; }
  if [ "$model" = Qwen3.8-27B ]; then
    bench decode --prompt-tokens 128,32768 --tokens 32 --samples 5
    bench prefill --prompt-tokens 8192 --samples 3
    bench batch --streams 1,32 --prompt-tokens 1024 --tokens 256 --samples 2
    # Passes of 8 rows, each of which gives 8 tokens.
    "$built/tensorfold" bench drafts "$folder/$model" --device cuda --quiet --tape --draft-max 7 --samples 1
  else
    bench decode --prompt-tokens 128 --tokens 32 --samples 5
  fi
  rm -rf "${folder:?}/$model"
done
