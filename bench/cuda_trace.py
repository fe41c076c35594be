#!/usr/bin/env python3
"""What a trace of CUDA kernels says, in microseconds.

cmake --preset cuda -DTENSORFOLD_CUDA_TRACE=ON && cmake --build build/cuda --target tensorfold
build/cuda/tensorfold bench decode MODEL --device cuda --quiet
bench/cuda_trace.py cuda-trace.bin [LINES]

Prints a line for each kind of launch, those that take most of all time first. Kinds are told apart by blocks and threads, and
by those of the launches before and after. `total` is from the return of its blocks' first wait to that of the next launch's: the
time that the launch takes of a pass. `late`: how much later the last block's wait returned than the first one's. `early`: how
long before the wait returned the first, the median and the last block were there; below 0 they came after it. Medians.
"""
import statistics
import struct
import sys
from collections import defaultdict

RECORD = struct.Struct("<QQIHH")  # TraceRecord of src/ops/cuda/trace_params.h


def read_records(path):
    """(wait returned, wait began, (blocks, threads)) of each block, in the order of the returns."""
    with open(path, "rb") as file:
        file.seek(RECORD.size)
        records = [
            (returned, began, (blocks, threads))
            for began, returned, blocks, threads, _ in RECORD.iter_unpack(file.read())
            if returned
        ]
    return sorted(records)


def launches(records):
    """(kind, waits returned, waits began) of each launch: as many blocks of one kind after each other as its grid has. Where the
    trace begins or lost some, blocks are left out up to the next kind."""
    first = 0
    while first < len(records):
        kind = records[first][2]
        end = first + kind[0]
        if end <= len(records) and all(record[2] == kind for record in records[first:end]):
            yield kind, [record[0] for record in records[first:end]], [record[1] for record in records[first:end]]
            first = end
            continue
        while first < len(records) and records[first][2] == kind:
            first += 1


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    all_launches = list(launches(read_records(sys.argv[1])))
    if len(all_launches) < 3:
        sys.exit(f"{sys.argv[1]}: {len(all_launches)} whole launches, where three or more were expected")
    kinds = defaultdict(list)
    for before, launch, after in zip(all_launches, all_launches[1:], all_launches[2:]):
        _, returned, began = launch
        early = sorted((returned[0] - b for b in began), reverse=True)
        kinds[launch[0], before[0], after[0]].append(
            (after[1][0] - returned[0], returned[-1] - returned[0], early[0], statistics.median(early), early[-1])
        )
    whole = all_launches[-2][1][0] - all_launches[1][1][0]
    print(f"{len(all_launches)} launches, {whole / 1000:.0f} us")
    print(f"{'launches':>8} {'blocks x threads':>16} {'before it':>12} {'after it':>12}  share  total   late  early: first, median, last")
    by_time = sorted(kinds.items(), key=lambda kind: -sum(numbers[0] for numbers in kind[1]))
    for names, numbers in by_time[: int(sys.argv[2]) if len(sys.argv) == 3 else 30]:
        total, late, *early = (statistics.median(column) / 1000 for column in zip(*numbers))
        share = sum(n[0] for n in numbers) / whole
        kind, before, after = (f"{blocks} x {threads}" for blocks, threads in names)
        print(
            f"{len(numbers):8} {kind:>16} {before:>12} {after:>12} {share:6.1%} {total:6.2f} {late:6.2f}  "
            + " ".join(f"{e:7.2f}" for e in early)
        )


if __name__ == "__main__":
    main()
