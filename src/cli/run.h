// What `run` and `demo` share: one prompt, or a chat.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "cli/chat.h"
#include "cli/chat_flags.h"
#include "cli/flags.h"
#include "cli/model_flags.h"

namespace tensorfold {

struct RunFlags {
  ModelFlags model;
  EngineFlags engine;
  SamplingFlags sampling;
  ChatFlags chat_flags;
  ChatOptions chat;  ///< Its settings are made of chat_flags.
  std::string prompt;
  std::optional<int64_t> max_tokens;
  bool raw = false;
  bool json = false;
};

/// All but the MODEL.
void add_run_flags(Flags& flags, RunFlags& run);

/// Loads the model and answers. `flags` are completed by the model's defaults.
Status run_by_flags(RunFlags& flags);

}  // namespace tensorfold
