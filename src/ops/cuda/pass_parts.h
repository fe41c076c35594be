// The parts in which a pass is launched while the host goes on recording it.
#pragma once

namespace tensorfold::cuda {

/// A graph launch takes the host a quarter of a microsecond a kernel, recording half of that
/// (bench/results/h200-traced.txt). The first part is short, so that the device begins early; each keeps it
/// busy for longer than the host needs for the next.
class PassParts {
 public:
  static constexpr int kFirstSize = 32, kGrowth = 4;

  /// A pass begins.
  void begin() { size_ = kFirstSize; }
  /// Whether a part of so many launches is to run. Some are recorded two or three at once, so it may have
  /// more than it should.
  bool is_full(int num_launches) const { return num_launches >= size_; }
  /// A part was full and runs.
  void next() { size_ *= kGrowth; }

 private:
  int size_ = kFirstSize;  ///< Of the part being recorded.
};

}  // namespace tensorfold::cuda
