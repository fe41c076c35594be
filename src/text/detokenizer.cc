// text/detokenizer.h: the tokenizer's decoder stages with a string at their end.
#include "text/detokenizer.h"

#include <utility>

#include "base/check.h"
#include "text/detokenizer_decoder.h"

namespace tensorfold {

/// The end of the list of stages.
class Detokenizer::Output : public DecodeStage {
 public:
  void push(std::string_view text) override { text_ += text; }
  void finish() override { is_finished_ = true; }
  std::string take() { return std::exchange(text_, {}); }
  bool is_finished() const { return is_finished_; }

 private:
  std::string text_;
  bool is_finished_ = false;
};

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)),
      skip_special_tokens_(skip_special_tokens),
      output_(std::make_unique<Output>()),
      stages_(tokenizer_->decoder_chain().make_stages()) {
  stages_.back()->set_next(output_.get());
}
Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;

std::string Detokenizer::push(int32_t id) {
  TF_CHECK(!output_->is_finished(), "Detokenizer::push after finish");
  const std::optional<std::string_view> token = tokenizer_->decoder_input(id, skip_special_tokens_);
  if (token) stages_.front()->push(*token);
  return output_->take();
}

std::string Detokenizer::finish() {
  TF_CHECK(!output_->is_finished(), "Detokenizer::finish called twice");
  stages_.front()->finish();
  return output_->take();
}

}  // namespace tensorfold
