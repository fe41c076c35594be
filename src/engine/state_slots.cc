// The slot pool behind engine/state_slots.h.
#include "engine/state_slots.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace tensorfold {
namespace {

constexpr int64_t aligned_bytes(int64_t floats) { return (floats * 4 + 63) / 64 * 64; }

int64_t layer_bytes(const RecurrentShape& shape) {
  return aligned_bytes(shape.conv_floats()) + aligned_bytes(shape.matrix_floats());
}

}  // namespace

int64_t state_slot_bytes(std::span<const RecurrentShape> layers) {
  int64_t bytes = 0;
  for (const RecurrentShape& shape : layers) bytes += layer_bytes(shape);
  return bytes;
}

int64_t drafted_row_bytes(std::span<const RecurrentShape> layers) {
  int64_t bytes = 0;
  for (const RecurrentShape& shape : layers) bytes += aligned_bytes(shape.input_floats());
  return bytes;
}

StateSlotPool::StateSlotPool(Buffer buffer, Buffer drafted, int64_t slot_bytes, int64_t num_slots)
    : buffer_(std::move(buffer)),
      drafted_(std::move(drafted)),
      slot_bytes_(slot_bytes),
      num_slots_(num_slots),
      free_(num_slots) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

Result<std::unique_ptr<StateSlotPool>> StateSlotPool::create(Device& device,
                                                             std::span<const RecurrentShape> layers,
                                                             int64_t num_slots, int64_t max_drafted_rows) {
  const int64_t slot_bytes = state_slot_bytes(layers);
  TF_ASSIGN_OR_RETURN(Buffer buffer, device.allocate(slot_bytes * num_slots, "recurrent states"));
  Buffer drafted;
  if (const int64_t bytes = drafted_row_bytes(layers) * max_drafted_rows; bytes > 0) {
    TF_ASSIGN_OR_RETURN(drafted, device.allocate(bytes, "recurrent inputs of drafted rows"));
  }
  std::byte* next = buffer.data();
  std::byte* next_drafted = drafted.data();
  std::unique_ptr<StateSlotPool> pool(
      new StateSlotPool(std::move(buffer), std::move(drafted), slot_bytes, num_slots));
  for (const RecurrentShape& shape : layers) {
    pool->layers_.push_back(
        {.shape = shape,
         .conv = next,
         .matrix = next + aligned_bytes(shape.conv_floats()),
         .slot_stride_bytes = slot_bytes,
         .num_slots = num_slots,
         .drafted = View(next_drafted, DType::kF32, {max_drafted_rows, shape.input_floats()})});
    next += layer_bytes(shape);
    next_drafted += max_drafted_rows * aligned_bytes(shape.input_floats());
  }
  return pool;
}

int32_t StateSlotPool::allocate() {
  TF_CHECK(!free_.empty(), "no free state slot");
  const int32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void StateSlotPool::release(int32_t slot) {
  TF_CHECK(std::ranges::find(free_, slot) == free_.end(), "a state slot was given back twice");
  free_.push_back(slot);
}

}  // namespace tensorfold
