// The loops of linear(): tasks over panels and rows, segments and their tree, tiles. The arithmetic is in the kernels
// (linear_kernels.h), the activations come from linear_rows.h.
//
// One row runs panel by panel through the row kernel, reading each weight once. More rows run in blocks: the panel's
// weights are decoded into a buffer of the thread that stays in its L2 cache, then every group of rows that a tile
// kernel takes runs through it, its sums staying in L1.
#include "ops/cpu/linear.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "ops/cpu/linear_finish.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/linear_rows.h"
#include "ops/linear_layout.h"

namespace tensorfold::cpu {
namespace {

/// Rows of a task: enough to make decoding cheap (one decoded column pair costs about as much as three rows' use of
/// it), few enough that their sums (4 levels * 128 * 128 B = 64 KB) and a decoded panel fit an L2 cache of 512 KB.
constexpr int64_t kRowBlock = 128;
/// Bytes of weights decoded at a time, unless one segment is larger.
constexpr int64_t kTileBytes = 128 << 10;
/// Levels of the binary tree of eight segments that are alive at once.
constexpr int kTreeLevels = 4;
/// Handing a task to another thread costs a few hundred nanoseconds, the time to read this much.
constexpr int64_t kMinTaskBytes = 16 << 10;
/// Tasks are taken one by one, so that a thread that is late takes fewer.
constexpr int64_t kTasksPerThread = 8;

/// A call with all that its panels share.
struct Product {
  LinearCall call;
  LinearLayout layout;
  LinearKernels kernels;
  PanelShape shape;
  const std::byte* x = nullptr;  ///< Row 0 of this product.
  int64_t x_stride_bytes = 0;
  const float* group_sums = nullptr;
  int64_t num_rows = 0;
};

PanelShape panel_shape(const LinearSpec& spec, const LinearLayout& layout) {
  PanelShape shape{.chunk_bytes = layout.chunk_bytes};
  if (spec.format == WeightFormat::kAffine) {
    shape.num_groups = layout.num_chunks();
    shape.segment_groups = layout.segment_columns / layout.chunk_columns;
    shape.units_per_group = layout.chunk_columns / kUnitColumns;
  }
  return shape;
}

Product make_product(CpuContext& cpu, LinearRows& rows, DType activation, const LinearJob& job) {
  const LinearSpec& spec = job.call.weight.spec;
  const LinearLayout layout(spec);
  Product product{job.call, layout, linear_kernels(cpu.isa, spec, activation), panel_shape(spec, layout)};
  const PreparedRows& prepared = rows.rows(product.kernels.x_dtype);
  product.x = prepared.x + job.first_row * prepared.stride_bytes;
  product.x_stride_bytes = prepared.stride_bytes;
  if (spec.format == WeightFormat::kAffine) {
    const RowSums& sums =
        rows.sums(product.kernels.x_dtype, product.kernels.group_sums, product.shape.units_per_group);
    product.group_sums = sums.sums + job.first_row * sums.num_groups;
  }
  product.num_rows = job.call.out.num_rows();
  return product;
}

/// Memory of one thread for the panels of one task.
struct TileScratch {
  DecodedTile tile;
  float* level = nullptr;  ///< [kTreeLevels][kRowBlock][32]: running sums of segments, and of subtrees.
};

/// Columns decoded at a time: whole segments.
int64_t tile_columns(const Product& product) {
  const int64_t column_bytes = kPanelOutputs * dtype_bytes(product.kernels.x_dtype);
  const int64_t segment = product.layout.segment_columns;
  return std::max(segment, kTileBytes / column_bytes / segment * segment);
}

TileScratch take_scratch(Workspace& workspace, std::span<const Product> products) {
  int64_t weight_bytes = 0, num_scales = 0;
  for (const Product& p : products) {
    const int64_t elements = tile_columns(p) * kPanelOutputs;
    weight_bytes = std::max(weight_bytes, elements * dtype_bytes(p.kernels.x_dtype));
    if (p.shape.num_groups > 0) num_scales = std::max(num_scales, elements / p.layout.chunk_columns);
  }
  TileScratch scratch;
  scratch.tile.weights = workspace.take<std::byte>(weight_bytes);
  scratch.tile.scales = workspace.take<float>(num_scales);
  scratch.tile.biases = workspace.take<float>(num_scales);
  scratch.level = workspace.take<float>(kTreeLevels * kRowBlock * kPanelOutputs);
  return scratch;
}

/// Rows [first_row, first_row + num_rows) of panels [first_panel, first_panel + num_panels) of a product.
struct Task {
  const Product* product = nullptr;
  int64_t first_panel = 0, num_panels = 0;
  int64_t first_row = 0, num_rows = 0;
};

/// The panels of a product are cut into equal parts, and its rows into equal blocks.
struct TaskGrid {
  int64_t panel_parts = 1, row_parts = 1;
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Shares by weight bytes times rows: what one row reads, and in proportion to what many rows multiply.
TaskGrid task_grid(const Product& p, int64_t total_cost, int64_t num_threads) {
  const int64_t cost = p.layout.packed_bytes() * p.num_rows;
  const int64_t wanted = num_threads == 1 ? 1 : num_threads * std::min(kTasksPerThread, total_cost / (num_threads * kMinTaskBytes));
  TaskGrid grid{.row_parts = ceil_div(p.num_rows, kRowBlock)};
  const int64_t parts = ceil_div(wanted * cost, std::max<int64_t>(1, total_cost) * grid.row_parts);
  grid.panel_parts = std::clamp<int64_t>(parts, 1, p.layout.num_panels);
  return grid;
}

/// A tile's place in a panel: whole segments, and the columns they have.
struct TileRange {
  int64_t first_segment = 0, end_segment = 0;
  int64_t begin = 0, end = 0;
};

TileRange tile_range(const Product& p, int64_t first_segment) {
  const int64_t columns = p.layout.padded_columns, segment_columns = p.layout.segment_columns;
  TileRange range{.first_segment = first_segment};
  range.begin = std::min(first_segment * segment_columns, columns);
  range.end = std::min(range.begin + tile_columns(p), columns);
  // The empty segments at the end, if any, belong to the last tile.
  range.end_segment = range.end == columns ? kSegments : range.end / segment_columns;
  return range;
}

/// Rows that go through a tile kernel together.
struct RowGroup {
  int64_t first_row = 0, num_rows = 0;
  float* level = nullptr;  ///< The group's place in TileScratch::level.
};

/// One dispatch: products split into tasks, and the kernels that end a row.
class Dispatch {
 public:
  /// Memory is of the frame of cpu.workspace that is open.
  Dispatch(CpuContext& cpu, View x, std::span<const LinearJob> jobs);
  void run() const;

 private:
  void make_tasks();
  void run_task(const Task& task, int thread) const;
  void row_panel(const Product& product, int64_t panel) const;
  void block_panel(const Task& task, int64_t panel, const TileScratch& scratch) const;
  void tile_segments(const Product& p, const std::byte* packed, const DecodedTile& tile, const TileRange& range,
                     const RowGroup& rows) const;
  void finish_row(const Product& product, int64_t panel, int64_t row, const float* sums) const;

  CpuContext& cpu_;
  FinishKernel finish_;
  AddKernel add_;
  std::span<Product> products_;
  std::span<Task> tasks_;
  std::span<TileScratch> scratch_;  ///< By thread.
};

Dispatch::Dispatch(CpuContext& cpu, View x, std::span<const LinearJob> jobs)
    : cpu_(cpu), finish_(finish_kernel(cpu.isa)), add_(add_kernel(cpu.isa)) {
  products_ = {cpu.workspace.take<Product>(static_cast<int64_t>(jobs.size())), jobs.size()};
  LinearRows rows(cpu, x);
  bool has_blocks = false;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Product& p = *std::construct_at(&products_[i], make_product(cpu, rows, x.dtype, jobs[i]));
    has_blocks = has_blocks || p.num_rows > 1 || p.kernels.row == nullptr;
  }
  make_tasks();
  if (!has_blocks) return;
  const auto num_threads = static_cast<size_t>(cpu.pool.num_threads());
  scratch_ = {cpu.workspace.take<TileScratch>(cpu.pool.num_threads()), num_threads};
  for (TileScratch& scratch : scratch_) std::construct_at(&scratch, take_scratch(cpu.workspace, products_));
}

void Dispatch::make_tasks() {
  int64_t total_cost = 0, num_tasks = 0;
  for (const Product& p : products_) total_cost += p.layout.packed_bytes() * p.num_rows;
  const auto grid_of = [&](const Product& p) { return task_grid(p, total_cost, cpu_.pool.num_threads()); };
  for (const Product& p : products_) num_tasks += grid_of(p).panel_parts * grid_of(p).row_parts;
  tasks_ = {cpu_.workspace.take<Task>(num_tasks), static_cast<size_t>(num_tasks)};
  size_t next = 0;
  for (const Product& p : products_) {
    const TaskGrid grid = grid_of(p);
    for (int64_t r = 0; r < grid.row_parts; ++r) {
      const int64_t row = p.num_rows * r / grid.row_parts, row_end = p.num_rows * (r + 1) / grid.row_parts;
      for (int64_t i = 0; i < grid.panel_parts; ++i) {
        const int64_t panel = p.layout.num_panels * i / grid.panel_parts;
        const int64_t panel_end = p.layout.num_panels * (i + 1) / grid.panel_parts;
        tasks_[next++] = {&p, panel, panel_end - panel, row, row_end - row};
      }
    }
  }
}

void Dispatch::run() const {
  cpu_.pool.run(static_cast<int64_t>(tasks_.size()),
                [this](int64_t i, int thread) { run_task(tasks_[static_cast<size_t>(i)], thread); });
}

void Dispatch::run_task(const Task& task, int thread) const {
  const Product& product = *task.product;
  const bool by_row = product.num_rows == 1 && product.kernels.row != nullptr;
  for (int64_t panel = task.first_panel; panel < task.first_panel + task.num_panels; ++panel) {
    if (by_row) {
      row_panel(product, panel);
    } else {
      block_panel(task, panel, scratch_[static_cast<size_t>(thread)]);
    }
  }
}

void Dispatch::row_panel(const Product& product, int64_t panel) const {
  alignas(64) float sums[kPanelOutputs];
  product.kernels.row({.panel = product.call.weight.data + panel * product.layout.panel_bytes,
                       .shape = product.shape,
                       .x = product.x,
                       .group_sums = product.group_sums,
                       .sums = sums});
  finish_row(product, panel, 0, sums);
}

/// The tile call for `columns` columns from `column` on, of which the tile holds those from `tile_column` on.
TileArgs tile_args(const Product& p, const std::byte* panel, const DecodedTile& tile, int64_t tile_column,
                   int64_t column, int64_t columns) {
  const int64_t element_bytes = dtype_bytes(p.kernels.x_dtype);
  const int64_t tile_offset = (column - tile_column) * kPanelOutputs * element_bytes;
  TileArgs args{.num_groups = 1,
                .steps_per_group = columns / 2,
                .x = p.x + column * element_bytes,
                .x_stride_bytes = p.x_stride_bytes};
  args.weights = p.kernels.decode == nullptr ? panel + column / p.layout.chunk_columns * p.layout.chunk_bytes
                                             : tile.weights + tile_offset;
  if (p.shape.num_groups == 0) return args;
  const int64_t group = column / p.layout.chunk_columns, tile_group = group - tile_column / p.layout.chunk_columns;
  args.scales = tile.scales + tile_group * kPanelOutputs;
  args.biases = tile.biases + tile_group * kPanelOutputs;
  args.num_groups = columns / p.layout.chunk_columns;
  args.steps_per_group = p.layout.chunk_columns / 2;
  args.group_sums = p.group_sums + group;
  args.group_sums_stride = p.shape.num_groups;
  return args;
}

void Dispatch::block_panel(const Task& task, int64_t panel, const TileScratch& scratch) const {
  const Product& p = *task.product;
  const std::byte* packed = p.call.weight.data + panel * p.layout.panel_bytes;
  const int64_t row_groups = ceil_div(task.num_rows, p.kernels.max_tile_rows);
  for (TileRange range; range.end_segment < kSegments;) {
    range = tile_range(p, range.end_segment);
    if (p.kernels.decode != nullptr) {
      p.kernels.decode(scratch.tile, packed + range.begin / p.layout.chunk_columns * p.layout.chunk_bytes,
                       (range.end - range.begin) / p.layout.chunk_columns, p.shape);
    }
    for (int64_t g = 0; g < row_groups; ++g) {
      const int64_t row = task.num_rows * g / row_groups, row_end = task.num_rows * (g + 1) / row_groups;
      const RowGroup rows{task.first_row + row, row_end - row, scratch.level + row * kPanelOutputs};
      tile_segments(p, packed, scratch.tile, range, rows);
      for (int64_t r = 0; range.end_segment == kSegments && r < rows.num_rows; ++r) {
        finish_row(p, panel, rows.first_row + r, rows.level + r * kPanelOutputs);
      }
    }
  }
}

/// Segment s opens a level of the tree on top of the complete subtrees before it, of which there are as many as s has
/// bits set; then every pair of subtrees of one size becomes one.
void Dispatch::tile_segments(const Product& p, const std::byte* packed, const DecodedTile& tile,
                             const TileRange& range, const RowGroup& rows) const {
  constexpr int64_t kLevelStride = kRowBlock * kPanelOutputs;
  const int64_t size = rows.num_rows * kPanelOutputs;
  for (int64_t segment = range.first_segment; segment < range.end_segment; ++segment) {
    float* acc = rows.level + std::popcount(static_cast<uint64_t>(segment)) * kLevelStride;
    std::memset(acc, 0, static_cast<size_t>(size) * sizeof(float));
    const int64_t begin = std::min(segment * p.layout.segment_columns, range.end);
    const int64_t end = std::min(begin + p.layout.segment_columns, range.end);
    if (begin < end) {
      TileArgs args = tile_args(p, packed, tile, range.begin, begin, end - begin);
      args.x += rows.first_row * p.x_stride_bytes;
      if (args.group_sums != nullptr) args.group_sums += rows.first_row * args.group_sums_stride;
      args.acc = acc;
      args.num_rows = static_cast<int>(rows.num_rows);
      p.kernels.tile(args);
    }
    for (int64_t count = segment + 1; count % 2 == 0; count /= 2, acc -= kLevelStride) {
      add_(acc - kLevelStride, acc, size);
    }
  }
}

void Dispatch::finish_row(const Product& product, int64_t panel, int64_t row, const float* sums) const {
  const LinearCall& call = product.call;
  const int64_t first = panel * kPanelOutputs;
  finish_({.sums = sums,
           .bias = call.weight.bias == nullptr ? nullptr : call.weight.bias + first,
           .out = call.out.data + (row * call.out.row_stride + first) * dtype_bytes(call.out.dtype),
           .dtype = call.out.dtype,
           .count = std::min(kPanelOutputs, call.weight.spec.out - first),
           .accumulate = call.accumulate});
}

}  // namespace

void linear_jobs(CpuContext& cpu, View x, std::span<const LinearJob> jobs) {
  const Workspace::Frame frame(cpu.workspace);
  Dispatch(cpu, x, jobs).run();
}

void linear(CpuContext& cpu, View x, std::span<const LinearCall> calls) {
  const Workspace::Frame frame(cpu.workspace);
  const std::span<LinearJob> jobs(cpu.workspace.take<LinearJob>(static_cast<int64_t>(calls.size())), calls.size());
  for (size_t i = 0; i < calls.size(); ++i) std::construct_at(&jobs[i], LinearJob{.call = calls[i]});
  linear_jobs(cpu, x, jobs);
}

}  // namespace tensorfold::cpu
