// See make_drafters.h.
#include "engine/make_drafters.h"

#include "drafters/block.h"
#include "drafters/draft_model.h"
#include "drafters/lookup.h"
#include "drafters/mtp.h"

namespace tensorfold {
namespace {

/// Prompt lookup with what the request's session has beside its prompt.
std::unique_ptr<Drafter> make_lookup(SessionCorpus* sessions, const Request& request) {
  auto lookup = std::make_unique<LookupDrafter>();
  if (sessions == nullptr || !request.session) return lookup;
  for (const std::vector<int32_t>& text : sessions->texts_beside(*request.session, request.prompt))
    lookup->add_text(text);
  return lookup;
}

}  // namespace

std::unique_ptr<Drafter> make_drafter(const EngineOptions& options, SessionCorpus* sessions,
                                      const Request& request) {
  if (options.draft == DraftMode::kOff || options.draft == DraftMode::kModel || !request.draft)
    return nullptr;
  std::unique_ptr<Drafter> drafter =
      options.make_drafter ? options.make_drafter(request) : make_lookup(sessions, request);
  if (drafter != nullptr) drafter->extend(request.prompt);
  return drafter;
}

Result<std::unique_ptr<PassDrafter>> make_pass_drafter(const EngineOptions& options,
                                                       const LoadedModel& model) {
  std::unique_ptr<PassDrafter> drafter;
  if (options.draft != DraftMode::kModel && options.draft != DraftMode::kAuto) return drafter;
  if (options.make_pass_drafter) {
    drafter = options.make_pass_drafter(model);
  } else if (const LoadedDraftModel* small = model.draft_model.get();
             small != nullptr && small->block_drafter) {
    drafter = std::make_unique<BlockPassDrafter>(
        BlockModel{.name = small->name,
                   .drafter = *small->block_drafter,
                   .ops = *model.ops,
                   .weights = *small->weights,
                   .target = {.model = *model.model, .weights = *model.weights},
                   .num_drawable_tokens = num_drawable_tokens(model),
                   .least_confidence = options.draft_confidence,
                   // Which rows of a tree pay is only known where passes are measured.
                   .offers_trees = options.draft == DraftMode::kAuto});
  } else if (small != nullptr) {
    drafter =
        std::make_unique<DraftModelDrafter>(SmallModel{.name = small->name,
                                                       .model = *small->model,
                                                       .ops = *model.ops,
                                                       .weights = *small->weights,
                                                       .num_drawable_tokens = num_drawable_tokens(model),
                                                       .least_confidence = options.draft_confidence});
  } else if (model.model->draft_head() != nullptr) {
    drafter = std::make_unique<MtpDrafter>(MtpModel{.model = *model.model,
                                                    .ops = *model.ops,
                                                    .weights = *model.weights,
                                                    .num_drawable_tokens = num_drawable_tokens(model),
                                                    .least_confidence = options.draft_confidence});
  }
  if (drafter == nullptr && options.draft == DraftMode::kModel)
    return invalid_argument("{} has no draft head (MTP), and no draft model was given", model.name);
  return drafter;
}

void name_drafters(SequenceDrafts& drafts, std::string_view computing) {
  drafts.computed.is_wanted &= !computing.empty();
  std::string& name = drafts.usage.drafter;
  if (drafts.drafter != nullptr) name = drafts.drafter->name();
  if (!drafts.computed.is_wanted) return;
  if (!name.empty()) name += "+";
  name += computing;
}

}  // namespace tensorfold
