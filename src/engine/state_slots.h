// Recurrent states: one slot for every sequence that runs, holding what each recurrent layer keeps of it.
// What lies inside a slot is the ops backend's; a slot needs no clearing, since every op starts from zeros at
// position 0.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "ops/ops.h"

namespace tensorfold {

/// Bytes of one slot: convolution rows and matrices of every recurrent layer, each rounded up to 64. 0 for
/// models without recurrent layers.
int64_t state_slot_bytes(std::span<const RecurrentShape> layers);

/// Bytes of what all recurrent layers keep of one drafted row.
int64_t drafted_row_bytes(std::span<const RecurrentShape> layers);

/// All slots of an engine. The address range is reserved at once; on the CPU a slot becomes resident when it
/// is first used. Engine thread only.
class StateSlotPool {
 public:
  /// With room for the inputs of max_drafted_rows drafted rows of a pass (RecurrentStates::drafted).
  /// kOutOfMemory where the device refuses.
  static Result<std::unique_ptr<StateSlotPool>> create(Device& device, std::span<const RecurrentShape> layers,
                                                       int64_t num_slots, int64_t max_drafted_rows);

  /// As State::recurrent_layers; valid as long as the pool.
  std::span<const RecurrentStates> layers() const { return layers_; }

  int64_t num_used() const { return num_slots_ - static_cast<int64_t>(free_.size()); }
  int64_t slot_bytes() const { return slot_bytes_; }

  /// A slot of any content. There must be a free one (TF_CHECK). The last one given back comes first, so that
  /// resident memory stays at its peak use.
  int32_t allocate();
  void release(int32_t slot);

 private:
  StateSlotPool(Buffer buffer, Buffer drafted, int64_t slot_bytes, int64_t num_slots);

  Buffer buffer_;
  Buffer drafted_;  ///< Layer by layer.
  std::vector<RecurrentStates> layers_;
  int64_t slot_bytes_;
  int64_t num_slots_;
  std::vector<int32_t> free_;  ///< The next one to hand out last.
};

/// The slot of one sequence, or none yet. Gives it back when destroyed.
class StateSlot {
 public:
  explicit StateSlot(StateSlotPool& pool) : pool_(&pool) {}
  ~StateSlot() { clear(); }
  StateSlot(const StateSlot&) = delete;
  StateSlot& operator=(const StateSlot&) = delete;

  /// -1: none.
  int32_t id() const { return id_; }
  void acquire() {
    if (id_ < 0) id_ = pool_->allocate();
  }
  void clear() {
    if (id_ >= 0) pool_->release(id_);
    id_ = -1;
  }

 private:
  StateSlotPool* pool_;
  int32_t id_ = -1;
};

}  // namespace tensorfold
