// See evaluate.h.
#include "engine/evaluate.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>

#include "formats/safetensors_writer.h"
#include "models/sequence_runner.h"

namespace tensorfold {
namespace {

/// Rows of one pass: enough to use all cores well, few enough that logits of a large vocabulary stay near 100
/// MB.
constexpr int64_t kPassRows = 128;
constexpr int64_t kDefaultWindowTokens = 2048;

/// -ln softmax(logits)[token], in double. Logits without NaN.
double negative_log_likelihood(std::span<const float> logits, int32_t token) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(double{logit} - top);
  return top + std::log(sum) - double{logits[token]};
}

Result<int64_t> choose_window(const LoadedModel& model, int64_t num_tokens, const EvaluateOptions& options) {
  const int64_t most = model.model->spec().max_position_embeddings;
  const bool keeps_logits = !options.logits_path.empty();
  const int64_t wanted = keeps_logits                ? num_tokens
                         : options.window_tokens > 0 ? options.window_tokens
                                                     : std::min(most, kDefaultWindowTokens);
  if (wanted > most)
    return invalid_argument("a window of {} tokens{}: the model was made for {} (max_position_embeddings)",
                            wanted, keeps_logits ? " (all of them, for their logits)" : "", most);
  return std::min(wanted, num_tokens);
}

/// Runs windows and adds up what each row predicts.
class Evaluator {
 public:
  Evaluator(SequenceRunner& runner, std::span<const int32_t> ids, const EvaluateOptions& options,
            SafetensorsWriter* writer)
      : runner_(runner), ids_(ids), options_(options), writer_(writer) {
    rows_.resize(kPassRows);
    std::iota(rows_.begin(), rows_.end(), 0);
  }

  Status run(int64_t window_tokens) {
    for (int64_t first = 0; first < std::ssize(ids_); first += window_tokens) {
      TF_RETURN_IF_ERROR(runner_.reset());
      TF_RETURN_IF_ERROR(run_window(first, std::min<int64_t>(first + window_tokens, std::ssize(ids_))));
    }
    return {};
  }

  Evaluation result() const {
    Evaluation result{.num_tokens = std::ssize(ids_), .num_scored = num_scored_};
    if (num_scored_ > 0) {
      result.mean_nll = nll_ / static_cast<double>(num_scored_);
      result.perplexity = std::exp(result.mean_nll);
    }
    return result;
  }

 private:
  Status run_window(int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kPassRows) {
      const int64_t num_rows = std::min(kPassRows, end - first);
      TF_ASSIGN_OR_RETURN(const std::span<const float> logits,
                          runner_.append(ids_.subspan(first, num_rows), std::span(rows_).first(num_rows)));
      TF_RETURN_IF_ERROR(score(logits, first, num_rows, end));
      if (writer_ != nullptr) TF_RETURN_IF_ERROR(writer_->append("logits", std::as_bytes(logits)));
      if (options_.progress) options_.progress(first + num_rows, std::ssize(ids_));
    }
    return {};
  }

  /// Row i predicts token first + i + 1, where the window has one.
  Status score(std::span<const float> logits, int64_t first, int64_t num_rows, int64_t window_end) {
    const size_t vocab_size = logits.size() / num_rows;
    for (int64_t i = 0; i < num_rows; ++i) {
      const std::span<const float> row = logits.subspan(i * vocab_size, vocab_size);
      if (std::ranges::any_of(row, [](float x) { return std::isnan(x); }))
        return make_error(StatusCode::kInternal, "a logit of position {} is NaN", first + i);
      if (first + i + 1 >= window_end) continue;
      nll_ += negative_log_likelihood(row, ids_[first + i + 1]);
      ++num_scored_;
    }
    return {};
  }

  SequenceRunner& runner_;
  std::span<const int32_t> ids_;
  const EvaluateOptions& options_;
  SafetensorsWriter* writer_;  ///< Null: logits are not kept.
  std::vector<int32_t> rows_;  ///< 0, 1, ...: every row's logits are wanted.
  double nll_ = 0;
  int64_t num_scored_ = 0;
};

Result<SafetensorsWriter> create_logits_file(const LoadedModel& model, std::span<const int32_t> ids,
                                             const std::string& path) {
  const int64_t vocab_size = model.model->spec().vocab_size;
  TF_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::create(path,
                                {{"input_ids", DType::kI32, {std::ssize(ids)}},
                                 {"logits", DType::kF32, {std::ssize(ids), vocab_size}}},
                                {{"model", model.name}, {"arithmetic", model.ops->info().arithmetic_id}}));
  TF_RETURN_IF_ERROR(writer.append("input_ids", std::as_bytes(ids)));
  return writer;
}

}  // namespace

Result<Evaluation> evaluate(const LoadedModel& model, std::span<const int32_t> ids,
                            const EvaluateOptions& options) {
  if (ids.empty()) return invalid_argument("there are no tokens to evaluate");
  TF_ASSIGN_OR_RETURN(const int64_t window_tokens, choose_window(model, std::ssize(ids), options));
  TF_ASSIGN_OR_RETURN(const auto runner, SequenceRunner::create({*model.model, *model.ops, *model.weights},
                                                                {window_tokens, kPassRows}));
  std::optional<SafetensorsWriter> writer;
  if (!options.logits_path.empty()) {
    TF_ASSIGN_OR_RETURN(SafetensorsWriter created, create_logits_file(model, ids, options.logits_path));
    writer.emplace(std::move(created));
  }
  Evaluator evaluator(*runner, ids, options, writer ? &*writer : nullptr);
  TF_RETURN_IF_ERROR(evaluator.run(window_tokens));
  if (writer) TF_RETURN_IF_ERROR(writer->finish());
  return evaluator.result();
}

Result<std::vector<int32_t>> parse_token_ids(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  std::vector<int32_t> ids;
  for (size_t at = text.find_first_not_of(kSpace); at != text.npos; at = text.find_first_not_of(kSpace, at)) {
    const size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    int32_t id = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || rest != word.data() + word.size() || id < 0)
      return invalid_argument("token id {}: \"{}\" is not an integer from 0 to 2^31-1", ids.size(),
                              word.substr(0, 40));
    ids.push_back(id);
    at = end;
  }
  return ids;
}

}  // namespace tensorfold
