// experts() on CUDA: sorting pairs by expert into tasks, and adding up each row's choices. The products
// between the two: experts_few.cu, experts_many.cu.
#include <cuda_runtime.h>

#include "ops/cuda/device/async.cuh"
#include "ops/cuda/device/experts.cuh"
#include "ops/cuda/device/launch.cuh"
#include "ops/cuda/device/values.cuh"
#include "ops/cuda/experts_params.h"

namespace tensorfold::cuda {
namespace {

constexpr int kSortThreads = kMaxExperts;
constexpr int kSortWarps = kSortThreads / 32;
constexpr int kCombineThreads = 256;

__device__ __forceinline__ int expert_of_pair(const ExpertsLaunch& p, int pair) {
  return load_written(p.expert_ids + pair / p.num_choices * p.ids_stride + pair % p.num_choices);
}

/// The sums over all threads before this one of x and of y; thread i of a block of kSortThreads has (x, y).
__device__ __forceinline__ int2 exclusive_sums(int x, int y) {
  __shared__ int2 totals[kSortWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int2 sum = {x, y};
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int before_x = __shfl_up_sync(0xffffffffu, sum.x, distance),
              before_y = __shfl_up_sync(0xffffffffu, sum.y, distance);
    if (lane >= distance) sum.x += before_x, sum.y += before_y;
  }
  if (lane == 31) totals[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum.x += totals[w].x, sum.y += totals[w].y;
  return {sum.x - x, sum.y - y};
}

/// Sorts the pairs by expert, equal ones in their own order, and cuts each expert's into tasks. One block;
/// each warp has a run of pairs, counts its experts first and then knows the places of its own.
__global__ void __launch_bounds__(kSortThreads)
    experts_tasks_kernel(const __grid_constant__ ExpertsLaunch p) {
  __shared__ int places[kSortWarps][kMaxExperts];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, expert = threadIdx.x;
  const int num_pairs = p.num_rows * p.num_choices, run = (num_pairs + kSortThreads - 1) / kSortThreads * 32;
  const int begin = min(warp * run, num_pairs), end = min(begin + run, num_pairs);
#pragma unroll
  for (int w = 0; w < kSortWarps; ++w) places[w][expert] = 0;
  __syncthreads();
  wait_for_previous_kernel();
  launch_dependents();
#pragma unroll 4
  for (int pair = begin + lane; pair < end; pair += 32) atomicAdd(&places[warp][expert_of_pair(p, pair)], 1);
  __syncthreads();

  int count = 0;
#pragma unroll
  for (int w = 0; w < kSortWarps; ++w) {
    const int of_warp = places[w][expert];
    places[w][expert] = count;
    count += of_warp;
  }
  const int num_tasks = (count + p.task_rows - 1) / p.task_rows;
  const int2 first = exclusive_sums(count, num_tasks);
#pragma unroll
  for (int w = 0; w < kSortWarps; ++w) places[w][expert] += first.x;
  for (int i = 0; i < num_tasks; ++i)
    p.tasks[first.y + i] = {expert, first.x + i * p.task_rows, min(p.task_rows, count - i * p.task_rows)};
  if (expert == kMaxExperts - 1) *p.num_tasks = first.y + num_tasks;
  __syncthreads();

  constexpr int kAhead = 4;
  for (int at = begin; at < end; at += 32 * kAhead) {
    int experts[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int pair = at + 32 * i + lane;
      experts[i] = pair < end ? expert_of_pair(p, pair) : -1;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint32_t same = __match_any_sync(0xffffffffu, experts[i]);
      const int rank = __popc(same & ((1u << lane) - 1));
      const bool is_pair = experts[i] >= 0;
      const int place = is_pair ? places[warp][experts[i]] : 0;
      __syncwarp();
      if (is_pair) p.pairs[place + rank] = at + 32 * i + lane;
      if (is_pair && rank == 0) places[warp][experts[i]] = place + __popc(same);
      __syncwarp();
    }
  }
}

/// Grid: x columns, kWidth a thread, y rows. Traffic: every pair's outputs once.
template <int kWidth, class Out>
__global__ void __launch_bounds__(kCombineThreads)
    experts_combine_kernel(const __grid_constant__ ExpertsLaunch p) {
  wait_for_previous_kernel();
  launch_dependents();
  const int column = (blockIdx.x * kCombineThreads + threadIdx.x) * kWidth;
  if (column >= p.out_of.out) return;
  const int64_t row = blockIdx.y;
  const float* down = p.down_sums + row * p.num_choices * p.down_stride + column;
  const float* weights = p.expert_weights + row * p.weights_stride;
  float y[kWidth] = {};
#pragma unroll 4
  for (int j = 0; j < p.num_choices; ++j) {
    float x[kWidth];
    load<kWidth>(x, down + j * p.down_stride);
    const float weight = weights[j];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) y[i] = __fmaf_rn(weight, x[i], y[i]);
  }
  Out* out = static_cast<Out*>(p.out) + row * p.out_stride + column;
  if constexpr (sizeof(Out) == 4) {
    if (p.accumulate) {
      float before[kWidth];
      load<kWidth>(before, out);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) y[i] = __fadd_rn(before[i], y[i]);
    }
  }
  store<kWidth>(out, y);
}

template <int kWidth>
void launch_combine(CUstream_st* stream, const ExpertsLaunch& p) {
  constexpr int kColumns = kCombineThreads * kWidth;
  const dim3 grid((p.out_of.out + kColumns - 1) / kColumns, p.num_rows);
  auto* kernel =
      p.out_is_bf16 ? experts_combine_kernel<kWidth, uint16_t> : experts_combine_kernel<kWidth, float>;
  launch_kernel(kernel, grid, dim3(kCombineThreads), 0, stream, p);
}

/// The rows from `first` on, as many as the scratch is made for.
ExpertsLaunch block_of_rows(const ExpertsLaunch& p, int first) {
  ExpertsLaunch block = p;
  block.num_rows = p.num_rows - first < p.block_rows ? p.num_rows - first : p.block_rows;
  block.x += first * p.x_stride * 2;
  block.expert_ids += first * p.ids_stride;
  block.expert_weights += first * p.weights_stride;
  block.out = static_cast<std::byte*>(p.out) + first * p.out_stride * (p.out_is_bf16 ? 2 : 4);
  return block;
}

void launch_block(CUstream_st* stream, const ExpertsLaunch& p) {
  if (p.kind == ExpertTasks::kOneRow) return launch_experts_few(stream, p);
  if (p.kind != ExpertTasks::kPairs)
    launch_kernel(experts_tasks_kernel, dim3(1), dim3(kSortThreads), 0, stream, p);
  if (p.kind == ExpertTasks::kManyRows) {
    launch_experts_many(stream, p);
  } else {
    launch_experts_few(stream, p);
  }
  const bool in_fours =
      p.out_of.out % 4 == 0 && p.out_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.out) % 16 == 0;
  if (in_fours) return launch_combine<4>(stream, p);
  launch_combine<1>(stream, p);
}

}  // namespace

void launch_experts(CUstream_st* stream, const ExpertsLaunch& p) {
  for (int first = 0; first < p.num_rows; first += p.block_rows)
    launch_block(stream, block_of_rows(p, first));
}

}  // namespace tensorfold::cuda
