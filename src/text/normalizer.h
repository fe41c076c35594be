// The `normalizer` of tokenizer.json: what is done to a text before it is split.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace tensorfold {

/// A chain of steps that rewrite text. Immutable; any number of threads.
class Normalizer {
 public:
  /// `json` is the member's value; null gives the empty chain. Errors name "tokenizer.json: normalizer"; a
  /// chain that could make a text kMaxGrowth times longer is refused.
  static Result<Normalizer> parse(const Json& json);

  /// One step. Writes the changed text to `out` and returns true, or returns false where nothing changes
  /// (`out` is then unspecified). `origin_bytes` is how many bytes at the start of the text come from the
  /// first character of the original text (or were put in front of it); the step keeps it true.
  class Step {
   public:
    virtual ~Step() = default;
    virtual bool apply(std::string_view text, std::string& out, size_t& origin_bytes) const = 0;
    /// Bytes of output per byte of input, at most (what is added once per text not counted).
    virtual double growth() const = 0;
  };

  bool is_empty() const { return steps_.empty(); }

  /// The normalized text: `text` itself where nothing changes, else a view of `storage`. `text` must not lie
  /// in `storage` or `spare`. `origin_bytes` as in Step.
  std::string_view apply(std::string_view text, std::string& storage, std::string& spare,
                         size_t& origin_bytes) const;
  std::string apply(std::string_view text) const;

 private:
  static constexpr double kMaxGrowth = 512;
  std::vector<std::shared_ptr<const Step>> steps_;
};

}  // namespace tensorfold
