// Each decoder type of Hugging Face's tokenizers that BPE checkpoints use. Where a decoder needs the whole of
// its input (a regular expression over fused text, say), its stage buffers it: the text is right, only later.
#include "text/detokenizer_decoder.h"

#include <algorithm>
#include <optional>

#include "text/tokenizer_byte_alphabet.h"
#include "text/tokenizer_fields.h"
#include "text/tokenizer_pattern.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

constexpr char kComponent[] = "tokenizer.json: decoder";
constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

/// Without a decoder: tokens joined with blanks.
class JoinStage : public DecodeStage {
 public:
  void push(std::string_view text) override {
    if (!is_first_) next_->push(" ");
    is_first_ = false;
    next_->push(text);
  }

 private:
  bool is_first_ = true;
};

class FuseStage : public DecodeStage {
 public:
  void push(std::string_view text) override { next_->push(text); }
};

/// Collects parts of a fused token for a stage that wants it whole.
class BufferStage : public DecodeStage {
 public:
  void push(std::string_view text) override { text_ += text; }
  void finish() override {
    next_->push(text_);
    next_->finish();
  }

 private:
  std::string text_;
};

/// Bytes spelled as characters. A token with any other character stands for its own bytes. Emits complete
/// characters and U+FFFD for invalid parts; holds back at most three bytes of an unfinished character.
class ByteLevelStage : public DecodeStage {
 public:
  void push(std::string_view text) override {
    if (!append_spelled_bytes(bytes_, text)) bytes_ += text;
    std::string_view rest = bytes_;
    while (!rest.empty()) {
      const Utf8Prefix prefix = utf8_prefix(rest);
      if (prefix.is_incomplete) break;
      if (prefix.is_complete) {
        out_ += rest.substr(0, prefix.num_bytes);
      } else {
        out_ += kReplacement;
      }
      rest.remove_prefix(prefix.num_bytes);
    }
    bytes_.erase(0, bytes_.size() - rest.size());
    if (!out_.empty()) next_->push(out_);
    out_.clear();
  }
  void finish() override {
    if (!bytes_.empty()) next_->push(kReplacement);
    next_->finish();
  }

 private:
  std::string bytes_, out_;
};

/// Runs of tokens "<0xHH>" become the text of their bytes, or one U+FFFD for each byte where the run as a
/// whole is not valid. So nothing of a run can be emitted before the run ends.
class ByteFallbackStage : public DecodeStage {
 public:
  void push(std::string_view text) override {
    if (const std::optional<char> byte = byte_of(text)) {
      run_ += *byte;
      return;
    }
    end_run();
    next_->push(text);
  }
  void finish() override {
    end_run();
    next_->finish();
  }

 private:
  static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    const char lower = static_cast<char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
  }
  static std::optional<char> byte_of(std::string_view text) {
    if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
    const int high = text[3] == '+' ? 0 : digit(text[3]);  // Rust's integer parser takes a sign.
    const int low = digit(text[4]);
    if (high < 0 || low < 0) return std::nullopt;
    return static_cast<char>(high << 4 | low);
  }
  void end_run() {
    if (run_.empty()) return;
    if (is_valid_utf8(run_)) {
      next_->push(run_);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) next_->push(kReplacement);
    }
    run_.clear();
  }

  std::string run_;
};

/// Replaces in each token by itself; also right for parts of a token if the pattern is a single character.
class ReplaceStage : public DecodeStage {
 public:
  ReplaceStage(std::shared_ptr<const TokenizerRegex> regex, std::string content)
      : regex_(std::move(regex)), content_(std::move(content)) {}
  void push(std::string_view text) override {
    matches_.clear();
    if (!text.empty()) regex_->find_all(text, matches_);
    if (matches_.empty()) return next_->push(text);
    out_.clear();
    size_t done = 0;
    for (const TextRange& match : matches_) {
      out_ += text.substr(done, match.begin - done);
      out_ += content_;
      done = match.end;
    }
    out_ += text.substr(done);
    next_->push(out_);
  }

 private:
  std::shared_ptr<const TokenizerRegex> regex_;
  std::string content_;
  std::vector<TextRange> matches_;
  std::string out_;
};

/// The `content`, `start` and `stop` of Strip: at most so many copies of a character go at each end.
struct StripOptions {
  std::string content;
  int64_t start, stop;
};

class StripTokensStage : public DecodeStage {
 public:
  explicit StripTokensStage(StripOptions options) : options_(std::move(options)) {}
  void push(std::string_view text) override {
    for (int64_t i = 0; i < options_.start && text.starts_with(options_.content); ++i) {
      text.remove_prefix(options_.content.size());
    }
    for (int64_t i = 0; i < options_.stop && text.ends_with(options_.content); ++i) {
      text.remove_suffix(options_.content.size());
    }
    next_->push(text);
  }

 private:
  StripOptions options_;
};

/// Strip of one token that comes in parts: trailing copies are held back until something else follows.
class StripFusedStage : public DecodeStage {
 public:
  explicit StripFusedStage(StripOptions options) : options_(std::move(options)) {}
  void push(std::string_view text) override {
    while (num_cut_ < options_.start && text.starts_with(options_.content)) {
      text.remove_prefix(options_.content.size());
      ++num_cut_;
    }
    if (text.empty()) return;
    num_cut_ = options_.start;
    if (options_.stop == 0) return next_->push(text);
    std::string_view body = text;
    int64_t num_trailing = 0;
    while (body.ends_with(options_.content)) {
      body.remove_suffix(options_.content.size());
      ++num_trailing;
    }
    if (!body.empty()) {
      emit_held(num_held_);
      next_->push(body);
      num_held_ = 0;
    }
    num_held_ += num_trailing;
  }
  void finish() override {
    emit_held(std::max<int64_t>(0, num_held_ - options_.stop));
    next_->finish();
  }

 private:
  void emit_held(int64_t count) {
    for (int64_t i = 0; i < count; ++i) next_->push(options_.content);
  }
  StripOptions options_;
  int64_t num_cut_ = 0;   // leading copies taken off; `start` once anything else was seen
  int64_t num_held_ = 0;  // trailing copies so far
};

/// The replacement character becomes a blank, or nothing in the first token (`drop_first`). Fused text is all
/// first token.
class MetaspaceStage : public DecodeStage {
 public:
  MetaspaceStage(std::string replacement, bool drop_first, bool is_fused)
      : replacement_(std::move(replacement)), drops_(drop_first), drops_always_(drop_first && is_fused) {}
  void push(std::string_view text) override {
    std::string out;
    for (size_t pos = 0; pos < text.size();) {
      if (text.substr(pos).starts_with(replacement_)) {
        if (!drops_) out += ' ';
        pos += replacement_.size();
      } else {
        out += text[pos++];
      }
    }
    drops_ = drops_always_;
    next_->push(out);
  }

 private:
  std::string replacement_;
  bool drops_, drops_always_;
};

/// BPEDecoder: a suffix marks the end of a word and becomes a blank, except in the last token.
class WordSuffixStage : public DecodeStage {
 public:
  explicit WordSuffixStage(std::string suffix) : suffix_(std::move(suffix)) {}
  void push(std::string_view text) override {
    if (held_) next_->push(replaced(*held_, " "));
    held_ = text;
  }
  void finish() override {
    if (held_) next_->push(replaced(*held_, ""));
    next_->finish();
  }

 private:
  /// As Rust's str::replace: an empty suffix is found before every character and at the end.
  std::string replaced(const std::string& text, std::string_view by) const {
    std::string out;
    for (size_t pos = 0; pos < text.size();) {
      const bool found = std::string_view(text).substr(pos).starts_with(suffix_);
      if (found) out += by;
      if (found && !suffix_.empty()) {
        pos += suffix_.size();
        continue;
      }
      const int length = utf8_length(text[pos]);
      out.append(text, pos, length);
      pos += length;
    }
    if (suffix_.empty()) out += by;
    return out;
  }
  std::string suffix_;
  std::optional<std::string> held_;
};

/// The factories of a chain under construction. One that could make a text kMaxGrowth times longer is
/// refused.
struct Chain {
  static constexpr double kMaxGrowth = 512;
  std::vector<DecoderChain::Factory> factories;
  bool is_fused = false;  // what comes out of the last stage is one token in parts
  double growth = 1;      // bytes of output per byte of a token, at most

  template <class T, class... Args>
  void add(Args... args) {
    factories.push_back([args...] { return std::make_unique<T>(args...); });
  }
  /// Adds a stage that takes whole tokens only.
  template <class T, class... Args>
  void add_for_tokens(Args... args) {
    if (is_fused) add<BufferStage>();
    add<T>(args...);
  }
};

bool is_one_char(std::string_view text) {
  return !text.empty() && static_cast<size_t>(utf8_length(text[0])) == text.size();
}

Status parse_replace(TokenizerFields& fields, Chain& chain) {
  const std::string content = fields.text("content");
  TF_ASSIGN_OR_RETURN(TokenizerPattern pattern, parse_pattern(fields));
  TF_RETURN_IF_ERROR(fields.status());
  const Json* literal = fields.required("pattern").find("String");
  const bool is_char = literal != nullptr && literal->is_string() && is_one_char(literal->as_string());
  chain.growth *= static_cast<double>(content.size()) + 1;
  if (chain.growth > Chain::kMaxGrowth) {
    return unsupported("{}: may make text {:.0f} times longer", kComponent, chain.growth);
  }
  const auto regex = std::make_shared<const TokenizerRegex>(std::move(pattern.regex));
  if (is_char) {
    chain.add<ReplaceStage>(regex, content);
  } else {
    chain.add_for_tokens<ReplaceStage>(regex, content);
  }
  return Status();
}

Status parse_strip(TokenizerFields& fields, Chain& chain) {
  constexpr int64_t kMost = 1 << 30;
  const StripOptions options{fields.text("content"), fields.count("start", kMost),
                             fields.count("stop", kMost)};
  TF_RETURN_IF_ERROR(fields.status());
  if (!is_one_char(options.content)) fields.fail("content '{}' is not one character", options.content);
  if (chain.is_fused) {
    chain.add<StripFusedStage>(options);
  } else {
    chain.add<StripTokensStage>(options);
  }
  return fields.status();
}

Status parse_metaspace(TokenizerFields& fields, Chain& chain) {
  const std::string replacement = fields.text("replacement");
  const std::string scheme = fields.optional_text("prepend_scheme").value_or("always");
  const bool add_prefix_space = fields.flag_or("add_prefix_space", true);
  TF_RETURN_IF_ERROR(fields.status());
  if (!is_one_char(replacement)) fields.fail("replacement '{}' is not one character", replacement);
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    fields.fail("prepend_scheme '{}' is not known", scheme);
  }
  if (!add_prefix_space && scheme != "never")
    fields.fail("add_prefix_space is false, but prepend_scheme is '{}'", scheme);
  chain.add<MetaspaceStage>(replacement, scheme != "never", chain.is_fused);
  return fields.status();
}

Status parse_decoder(const Json& json, int depth, Chain& chain) {
  TokenizerFields fields(json, kComponent);
  const std::string type = fields.text("type");
  if (depth > kMaxComponentDepth) fields.fail("nests deeper than {} levels", kMaxComponentDepth);
  TF_RETURN_IF_ERROR(fields.status());
  if (type == "Sequence") {
    const Json::Array& items = fields.items("decoders");
    TF_RETURN_IF_ERROR(fields.status());
    for (const Json& item : items) TF_RETURN_IF_ERROR(parse_decoder(item, depth + 1, chain));
    return Status();
  }
  if (type == "Replace") return parse_replace(fields, chain);
  if (type == "Strip") return parse_strip(fields, chain);
  if (type == "Metaspace") return parse_metaspace(fields, chain);
  if (type == "ByteLevel") {
    chain.add_for_tokens<ByteLevelStage>();
    chain.is_fused = true;
  } else if (type == "ByteFallback") {
    chain.add_for_tokens<ByteFallbackStage>();
    // A fused token of the form <0xHH> becomes one token or several; all parts of it are then tokens again.
    chain.is_fused = false;
  } else if (type == "Fuse") {
    chain.add<FuseStage>();
    chain.is_fused = true;
  } else if (type == "BPEDecoder") {
    chain.add_for_tokens<WordSuffixStage>(fields.text("suffix"));
  } else {
    return fields.unsupported_type(type);
  }
  return fields.status();
}

}  // namespace

Result<DecoderChain> DecoderChain::parse(const Json& json) {
  Chain chain;
  if (json.is_null()) {
    chain.add<JoinStage>();
  } else {
    TF_RETURN_IF_ERROR(parse_decoder(json, 0, chain));
  }
  if (chain.factories.empty()) chain.add<FuseStage>();  // An empty Sequence: tokens are just joined.
  DecoderChain result;
  result.factories_ = std::move(chain.factories);
  return result;
}

std::vector<std::unique_ptr<DecodeStage>> DecoderChain::make_stages() const {
  std::vector<std::unique_ptr<DecodeStage>> stages;
  for (const Factory& factory : factories_) {
    stages.push_back(factory());
    if (stages.size() > 1) stages[stages.size() - 2]->set_next(stages.back().get());
  }
  return stages;
}

}  // namespace tensorfold
