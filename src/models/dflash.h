// DFlash and DFlash2, as make_block_drafter() (models/block_drafter.h) finds them.
#pragma once

#include <memory>
#include <string_view>

#include "models/block_drafter.h"

namespace tensorfold {

inline constexpr std::string_view kDFlash = "DFlashDraftModel", kDFlash2 = "DFlash2DraftModel";
inline constexpr std::string_view kDFlashArchitectures = "DFlashDraftModel, DFlash2DraftModel";

inline bool is_dflash_architecture(std::string_view architecture) {
  return architecture == kDFlash || architecture == kDFlash2;
}

Result<std::unique_ptr<BlockDrafter>> make_dflash(const BlockDrafterSource& source);

}  // namespace tensorfold
