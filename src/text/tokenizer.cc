// text/tokenizer.h: the pipeline (added tokens, normalizer, pre-tokenizer, model, template) over one borrowed
// scratch.
#include "text/tokenizer.h"

#include <algorithm>
#include <fstream>
#include <mutex>
#include <sstream>

#include "base/json.h"
#include "text/bpe_model.h"
#include "text/detokenizer.h"
#include "text/detokenizer_decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_added_tokens.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_fields.h"
#include "text/tokenizer_post_processor.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

/// Everything an encoding thread writes to.
struct EncodeScratch {
  BpeModel::Scratch model;
  PieceText pieces;
  std::string normalized, spare;
  std::vector<AddedTokenSplit> raw_splits, normalized_splits;
};

/// Scratches waiting for the next encode(); as many as ever encoded at once.
class ScratchPool {
 public:
  std::unique_ptr<EncodeScratch> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<EncodeScratch>();
    std::unique_ptr<EncodeScratch> scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<EncodeScratch> scratch) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> free_;  // guarded by mutex_
};

/// After a text this long a scratch is thrown away: its buffers, several times the text, would stay for good.
constexpr size_t kMaxKeptTextBytes = 4 << 20;

Result<std::optional<std::string>> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::optional<std::string>();
  std::ostringstream content;
  content << file.rdbuf();
  if (!file.good() && !file.eof()) return Status(StatusCode::kIo, fmt::format("{}: cannot be read", path));
  return std::optional(std::move(content).str());
}

/// What an id gives to the decoders.
struct DecoderInput {
  std::string_view text;
  bool is_known = false;
  bool is_skipped = false;  // with skip_special_tokens
};

}  // namespace

struct Tokenizer::Impl {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  AddedTokens added;
  std::vector<TemplatePiece> pieces;
  DecoderChain decoder;
  TokenizerConfig config;
  BpeModel::PieceKind piece_kind = BpeModel::PieceKind::kChars;
  std::vector<DecoderInput> decoder_inputs;  // by id
  mutable ScratchPool pool;

  Status parse(const Json& json);
  void prepare_decoder_inputs();
  void encode_text(std::string_view text, bool specials_as_text, EncodeScratch& scratch,
                   std::vector<int32_t>& ids) const;
  void encode_segment(std::string_view text, size_t origin_bytes, bool specials_as_text,
                      EncodeScratch& scratch, std::vector<int32_t>& ids) const;
  void encode_pieces(std::string_view text, TextRange range, size_t origin_bytes, EncodeScratch& scratch,
                     std::vector<int32_t>& ids) const;
};

Status Tokenizer::Impl::parse(const Json& json) {
  TokenizerFields fields(json, "tokenizer.json");
  TF_RETURN_IF_ERROR(fields.status());
  const Json null;
  const auto member = [&](std::string_view key) -> const Json& {
    const Json* value = json.find(key);
    return value == nullptr ? null : *value;
  };
  if (const Json* version = json.find("version"); version != nullptr && *version != Json("1.0")) {
    return unsupported("tokenizer.json: version is {}, expected \"1.0\"", dump_json(*version));
  }
  if (member("model").is_null()) return corrupt("tokenizer.json: 'model' is missing");
  TF_ASSIGN_OR_RETURN(normalizer, Normalizer::parse(member("normalizer")));
  TF_ASSIGN_OR_RETURN(pre_tokenizer, PreTokenizer::parse(member("pre_tokenizer")));
  TF_ASSIGN_OR_RETURN(model, BpeModel::parse(member("model")));
  TF_ASSIGN_OR_RETURN(added, AddedTokens::parse(member("added_tokens"), model.vocab(), normalizer));
  TF_ASSIGN_OR_RETURN(pieces, parse_post_processor(member("post_processor")));
  TF_ASSIGN_OR_RETURN(decoder, DecoderChain::parse(member("decoder")));
  if (pre_tokenizer.ends_in_byte_level() && model.takes_bytes()) piece_kind = BpeModel::PieceKind::kBytes;
  prepare_decoder_inputs();
  return Status();
}

void Tokenizer::Impl::prepare_decoder_inputs() {
  decoder_inputs.resize(std::max(model.vocab().id_limit(), added.id_limit()));
  for (int32_t id = 0; id < model.vocab().id_limit(); ++id) {
    if (const std::optional<std::string_view> token = model.vocab().token(id)) {
      decoder_inputs[id] = {*token, true, added.is_special_content(*token)};
    }
  }
  for (const AddedToken& token : added.all()) {
    const std::string_view text = token.normalized_content;
    decoder_inputs[token.id] = {text, true, added.is_special_content(text)};
  }
}

void Tokenizer::Impl::encode_text(std::string_view text, bool specials_as_text, EncodeScratch& scratch,
                                  std::vector<int32_t>& ids) const {
  scratch.raw_splits.clear();
  added.split_raw(text, specials_as_text, scratch.raw_splits);
  for (const AddedTokenSplit& split : scratch.raw_splits) {
    if (split.id) {
      ids.push_back(*split.id);
      continue;
    }
    const size_t origin_bytes = split.range.begin == 0 && !text.empty() ? utf8_length(text[0]) : 0;
    encode_segment(text.substr(split.range.begin, split.range.size()), origin_bytes, specials_as_text,
                   scratch, ids);
  }
}

void Tokenizer::Impl::encode_segment(std::string_view text, size_t origin_bytes, bool specials_as_text,
                                     EncodeScratch& scratch, std::vector<int32_t>& ids) const {
  text = normalizer.apply(text, scratch.normalized, scratch.spare, origin_bytes);
  scratch.normalized_splits.clear();
  added.split_normalized(text, specials_as_text, scratch.normalized_splits);
  for (const AddedTokenSplit& split : scratch.normalized_splits) {
    if (split.id) {
      ids.push_back(*split.id);
    } else {
      encode_pieces(text, split.range, origin_bytes, scratch, ids);
    }
  }
}

void Tokenizer::Impl::encode_pieces(std::string_view text, TextRange range, size_t origin_bytes,
                                    EncodeScratch& scratch, std::vector<int32_t>& ids) const {
  if (range.size() == 0) return;
  PieceText& pieces = scratch.pieces;
  pieces.text = text;
  pieces.pieces.assign(1, range);
  pieces.origin_bytes = origin_bytes;
  pre_tokenizer.apply(pieces, piece_kind == BpeModel::PieceKind::kBytes);
  for (const TextRange& piece : pieces.pieces) {
    model.encode(pieces.text.substr(piece.begin, piece.size()), piece_kind, scratch.model, ids);
  }
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& folder) {
  TF_ASSIGN_OR_RETURN(const std::optional<std::string> json, read_file(folder + "/tokenizer.json"));
  if (!json) return not_found("{}: tokenizer.json does not exist or cannot be opened", folder);
  TF_ASSIGN_OR_RETURN(const std::optional<std::string> config, read_file(folder + "/tokenizer_config.json"));
  Result<std::shared_ptr<const Tokenizer>> tokenizer = parse(*json, config.value_or(""));
  if (!tokenizer.ok()) return tokenizer.status().with_context(folder);
  return tokenizer;
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::parse(std::string_view tokenizer_json,
                                                          std::string_view tokenizer_config_json) {
  const Result<Json> json = parse_json(tokenizer_json);
  if (!json.ok()) return corrupt("tokenizer.json: {}", json.status().message());
  auto impl = std::make_unique<Impl>();
  TF_RETURN_IF_ERROR(impl->parse(*json));
  TF_ASSIGN_OR_RETURN(impl->config, parse_tokenizer_config(tokenizer_config_json));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::string repaired;
  if (!is_valid_utf8(text)) text = repaired = replace_invalid_utf8(text);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);  // English has about one token to four bytes.
  std::unique_ptr<EncodeScratch> scratch = impl_->pool.take();
  for (const TemplatePiece& piece : impl_->pieces) {
    if (piece.is_text) {
      impl_->encode_text(text, options.special_tokens_as_text, *scratch, ids);
    } else if (options.add_special_tokens) {
      ids.insert(ids.end(), piece.special_ids.begin(), piece.special_ids.end());
    }
  }
  if (text.size() <= kMaxKeptTextBytes) impl_->pool.give_back(std::move(scratch));
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  // The tokenizer outlives this call, so the detokenizer need not own it.
  Detokenizer detokenizer(std::shared_ptr<const Tokenizer>(std::shared_ptr<void>(), this),
                          skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  text += detokenizer.finish();
  return text;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->decoder_inputs.size()); }

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  if (const std::optional<int32_t> id = impl_->added.id_of(token)) return id;
  return impl_->model.vocab().find(token);
}

std::string_view Tokenizer::id_to_token(int32_t id) const {
  if (const AddedToken* token = impl_->added.find(id)) return token->content;
  return impl_->model.vocab().token(id).value_or(std::string_view());
}

bool Tokenizer::is_special(int32_t id) const {
  const AddedToken* token = impl_->added.find(id);
  return token != nullptr && token->is_special;
}

const std::optional<std::string>& Tokenizer::bos_token() const { return impl_->config.bos_token; }
const std::optional<std::string>& Tokenizer::eos_token() const { return impl_->config.eos_token; }
const std::optional<std::string>& Tokenizer::pad_token() const { return impl_->config.pad_token; }
const std::optional<std::string>& Tokenizer::unk_token() const { return impl_->config.unk_token; }
std::optional<bool> Tokenizer::add_bos_token() const { return impl_->config.add_bos_token; }
std::optional<bool> Tokenizer::add_eos_token() const { return impl_->config.add_eos_token; }

std::optional<std::string_view> Tokenizer::decoder_input(int32_t id, bool skip_special_tokens) const {
  if (id < 0 || id >= vocab_size()) return std::nullopt;
  const DecoderInput& input = impl_->decoder_inputs[id];
  if (!input.is_known || (skip_special_tokens && input.is_skipped)) return std::nullopt;
  return input.text;
}

const DecoderChain& Tokenizer::decoder_chain() const { return impl_->decoder; }

}  // namespace tensorfold
