"""Runs llama.cpp and TensorFold in turn on the same weights and prints medians and ratios.

Both decode 64 tokens at contexts of 128 and 2,048, read a prompt of 512, and serve 8 streams at once (prompts of 128, 64
tokens each). llama.cpp's thread count and flash-attention switch are chosen for each measurement by what is fastest in a first
round. Standard output: one CSV row per sample. Standard error: the table.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys

MEASUREMENTS = ("decode at 128", "decode at 2048", "prefill of 512", "8 streams")


def run(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def llama(args, model, measurement, settings):
    """One sample of llama.cpp in tokens per second for each (threads, flash attention) of `settings`."""
    if measurement == "8 streams":
        speeds = []
        for threads, flash in settings:
            out = run([f"{args.llama}/llama-batched-bench", "-m", model, "-t", str(threads), "-tb", str(threads), "-fa",
                       "on" if flash else "off", "-c", "4096", "-npp", "128", "-ntg", "64", "-npl", "8",
                       "--output-format", "jsonl"])
            speeds.append(json.loads(out.strip().splitlines()[-1])["speed_tg"])
        return speeds
    sizes = {"decode at 128": ["-p", "0", "-n", "64", "-d", "128"],
             "decode at 2048": ["-p", "0", "-n", "64", "-d", "2048"],
             "prefill of 512": ["-p", "512", "-n", "0"]}[measurement]
    threads, flash = (",".join(map(str, sorted(set(values)))) for values in zip(*settings))
    out = run([f"{args.llama}/llama-bench", "-m", model, "-t", threads, "-fa", flash, *sizes, "-r", "1", "-o", "json"])
    speeds = {(row["n_threads"], int(row["flash_attn"])): row["avg_ts"] for row in json.loads(out)}
    return [speeds[s] for s in settings]


def tensorfold(args, measurement, isa):
    """One sample of TensorFold in tokens per second."""
    kind, flags = {"decode at 128": ("decode", ["--prompt-tokens", "128", "--tokens", "64", "--samples", "1"]),
                   "decode at 2048": ("decode", ["--prompt-tokens", "2048", "--tokens", "64", "--samples", "1"]),
                   "prefill of 512": ("prefill", ["--prompt-tokens", "512", "--samples", "1"]),
                   "8 streams": ("batch", ["--streams", "8", "--prompt-tokens", "128", "--tokens", "64",
                                           "--samples", "1"])}[measurement]
    out = run([args.tensorfold, "bench", kind, args.model, *flags, "--isa", isa, "--json", "--quiet"])
    return json.loads(out)["results"][0]["tokens_per_s"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--llama", required=True)
    parser.add_argument("--q4_0", required=True)
    parser.add_argument("--q4_1", required=True)
    parser.add_argument("--tensorfold", default="build/cpu/tensorfold")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.environ["LD_LIBRARY_PATH"] = args.llama
    cpus = len(os.sched_getaffinity(0))

    # Q4_1 is not repacked and gains from every thread; Q4_0 may be faster with fewer.
    best = {}
    for model, thread_counts in ((args.q4_0, {1, cpus}), (args.q4_1, {cpus})):
        settings = [(threads, flash) for threads in sorted(thread_counts) for flash in (0, 1)]
        for measurement in MEASUREMENTS:
            speeds = llama(args, model, measurement, settings)
            best[model, measurement] = settings[speeds.index(max(speeds))]

    columns = {"llama.cpp Q4_0": lambda m: llama(args, args.q4_0, m, [best[args.q4_0, m]])[0],
               "llama.cpp Q4_1": lambda m: llama(args, args.q4_1, m, [best[args.q4_1, m]])[0],
               "tensorfold": lambda m: tensorfold(args, m, "best"),
               "tensorfold avx2": lambda m: tensorfold(args, m, "avx2")}
    writer = csv.writer(sys.stdout)
    writer.writerow(["measurement", "column", "settings", "round", "tokens_per_s"])
    samples = {}
    for round_idx in range(args.rounds):
        for measurement in MEASUREMENTS:
            for column, measure in columns.items():
                speed = measure(measurement)
                model = args.q4_0 if "Q4_0" in column else args.q4_1
                settings = "t={} fa={}".format(*best[model, measurement]) if "llama" in column else ""
                writer.writerow([measurement, column, settings, round_idx, f"{speed:.1f}"])
                sys.stdout.flush()
                samples.setdefault((measurement, column), []).append(speed)

    print(f"| tokens/s | {' | '.join(columns)} | ratio to Q4_0 | ratio to Q4_1 |", file=sys.stderr)
    print("|---" * (len(columns) + 3) + "|", file=sys.stderr)
    for measurement in MEASUREMENTS:
        median = {c: statistics.median(samples[measurement, c]) for c in columns}
        ratios = [median["tensorfold"] / median[f"llama.cpp {q}"] for q in ("Q4_0", "Q4_1")]
        cells = [f"{median[c]:.0f}" for c in columns] + [f"{r:.2f}" for r in ratios]
        print(f"| {measurement} | {' | '.join(cells)} |", file=sys.stderr)


if __name__ == "__main__":
    main()
