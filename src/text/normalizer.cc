// Each normalizer type of Hugging Face's tokenizers that BPE checkpoints use, one class each.
#include "text/normalizer.h"

#include <algorithm>

#include "text/tokenizer_byte_alphabet.h"
#include "text/tokenizer_fields.h"
#include "text/tokenizer_pattern.h"
#include "text/unicode.h"
#include "text/unicode_normalize.h"

namespace tensorfold {
namespace {

using Step = Normalizer::Step;
using Steps = std::vector<std::shared_ptr<const Step>>;

size_t first_char_size(std::string_view text) { return text.empty() ? 0 : utf8_length(text[0]); }

class UnicodeStep : public Step {
 public:
  explicit UnicodeStep(NormalForm form) : form_(form) {
    std::string unused;
    normalize_unicode("", form,
                      unused);  // Its tables take some ms to build: better now than in the first request.
  }
  bool apply(std::string_view text, std::string& out, size_t& origin_bytes) const override {
    if (!normalize_unicode(text, form_, out)) return false;
    if (origin_bytes > 0) origin_bytes = first_char_size(out);
    return true;
  }
  double growth() const override {
    return form_ == NormalForm::kNfc || form_ == NormalForm::kNfd ? 3 : 11;
  }  // U+FDFA: 3 to 33 bytes

 private:
  NormalForm form_;
};

class LowercaseStep : public Step {
 public:
  bool apply(std::string_view text, std::string& out, size_t& origin_bytes) const override {
    out.clear();
    size_t new_origin = 0;
    for (size_t pos = 0; pos < text.size();) {
      const int length = utf8_length(text[pos]);
      append_lowercase(out, decode_utf8(text.data() + pos, length));
      pos += length;
      if (pos <= origin_bytes) new_origin = out.size();
    }
    origin_bytes = new_origin;
    return true;
  }
  double growth() const override { return 1.5; }  // U+0130: 2 to 3
};

class StripStep : public Step {
 public:
  StripStep(bool left, bool right) : left_(left), right_(right) {}
  bool apply(std::string_view text, std::string& out, size_t& origin_bytes) const override {
    size_t begin = 0;
    size_t end = text.size();
    while (left_ && begin < end && is_white_space_at(text, begin)) begin += utf8_length(text[begin]);
    while (right_ && begin < end && is_white_space_at(text, previous_char(text, end)))
      end = previous_char(text, end);
    out = text.substr(begin, end - begin);
    origin_bytes -= std::min(origin_bytes, begin);
    return true;
  }
  double growth() const override { return 1; }

 private:
  static bool is_white_space_at(std::string_view text, size_t pos) {
    return is_white_space(decode_utf8(text.data() + pos, utf8_length(text[pos])));
  }
  bool left_, right_;
};

/// Removes marks; those that Unicode 9 did not have stay, and U+1CF2 and U+1CF3, which were marks then, go.
class StripAccentsStep : public Step {
 public:
  bool apply(std::string_view text, std::string& out, size_t& origin_bytes) const override {
    out.clear();
    const size_t old_origin = origin_bytes;
    origin_bytes = 0;
    for (size_t pos = 0; pos < text.size();) {
      const int length = utf8_length(text[pos]);
      if (!is_stripped(decode_utf8(text.data() + pos, length))) {
        out += text.substr(pos, length);
        if (pos < old_origin) origin_bytes = out.size();
      }
      pos += length;
    }
    return true;
  }
  double growth() const override { return 1; }

 private:
  static bool is_stripped(char32_t c) {
    if (c < 0x300) return false;
    if (c == 0x1cf2 || c == 0x1cf3) return true;
    return (CharTable::get().set_of(c) & char_set::kMark) != 0 && !contains(marks_after_unicode_9(), c);
  }
};

class PrependStep : public Step {
 public:
  explicit PrependStep(std::string prefix) : prefix_(std::move(prefix)) {}
  bool apply(std::string_view text, std::string& out, size_t& origin_bytes) const override {
    if (text.empty()) return false;
    out = prefix_;
    out += text;
    if (origin_bytes > 0) origin_bytes += prefix_.size();
    return true;
  }
  double growth() const override { return 1; }

 private:
  std::string prefix_;
};

class ReplaceStep : public Step {
 public:
  ReplaceStep(TokenizerPattern pattern, std::string content)
      : regex_(std::move(pattern.regex)), is_regex_(!pattern.source.empty()), content_(std::move(content)) {}
  bool apply(std::string_view text, std::string& out, size_t& origin_bytes) const override {
    if (text.empty()) return false;
    std::vector<TextRange> matches;
    regex_.find_all(text, matches);
    if (matches.empty()) return false;
    out.clear();
    size_t done = 0;
    size_t new_origin = 0;
    const auto append_unchanged = [&](size_t end) {
      if (origin_bytes > done) new_origin = out.size() + std::min(origin_bytes, end) - done;
      out += text.substr(done, end - done);
    };
    for (const TextRange& match : matches) {
      append_unchanged(match.begin);
      out += content_;
      // The replacement counts as coming from the last character of what it replaces.
      if (origin_bytes > 0 && match.end <= origin_bytes) new_origin = out.size();
      done = match.end;
    }
    append_unchanged(text.size());
    origin_bytes = new_origin;
    return true;
  }
  /// A regular expression may match before every character without taking it, a literal takes a byte at
  /// least.
  double growth() const override {
    const auto size = static_cast<double>(content_.size());
    return is_regex_ ? size + 1 : std::max(size, 1.0);
  }

 private:
  TokenizerRegex regex_;
  bool is_regex_;
  std::string content_;
};

class ByteLevelStep : public Step {
 public:
  bool apply(std::string_view text, std::string& out, size_t& origin_bytes) const override {
    out.clear();
    size_t new_origin = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      append_byte_char(out, static_cast<uint8_t>(text[i]));
      if (i < origin_bytes) new_origin = out.size();
    }
    origin_bytes = new_origin;
    return true;
  }
  double growth() const override { return 2; }
};

Status parse_steps(const Json& json, int depth, Steps& steps);

Status parse_sequence(TokenizerFields& fields, int depth, Steps& steps) {
  const Json::Array& items = fields.items("normalizers");
  TF_RETURN_IF_ERROR(fields.status());
  for (const Json& item : items) TF_RETURN_IF_ERROR(parse_steps(item, depth + 1, steps));
  return Status();
}

Status parse_replace(TokenizerFields& fields, Steps& steps) {
  std::string content = fields.text("content");
  TF_ASSIGN_OR_RETURN(TokenizerPattern pattern, parse_pattern(fields));
  TF_RETURN_IF_ERROR(fields.status());
  steps.push_back(std::make_shared<ReplaceStep>(std::move(pattern), std::move(content)));
  return Status();
}

/// Appends the steps of one component.
Status parse_steps(const Json& json, int depth, Steps& steps) {
  TokenizerFields fields(json, "tokenizer.json: normalizer");
  const std::string type = fields.text("type");
  if (depth > kMaxComponentDepth) fields.fail("nests deeper than {} levels", kMaxComponentDepth);
  TF_RETURN_IF_ERROR(fields.status());
  constexpr std::pair<std::string_view, NormalForm> kForms[] = {{"NFC", NormalForm::kNfc},
                                                                {"NFD", NormalForm::kNfd},
                                                                {"NFKC", NormalForm::kNfkc},
                                                                {"NFKD", NormalForm::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type == name) {
      steps.push_back(std::make_shared<UnicodeStep>(form));
      return Status();
    }
  }
  if (type == "Sequence") return parse_sequence(fields, depth, steps);
  if (type == "Replace") return parse_replace(fields, steps);
  if (type == "Lowercase") {
    steps.push_back(std::make_shared<LowercaseStep>());
  } else if (type == "Strip") {
    const bool left = fields.flag("strip_left");
    steps.push_back(std::make_shared<StripStep>(left, fields.flag("strip_right")));
  } else if (type == "StripAccents") {
    steps.push_back(std::make_shared<StripAccentsStep>());
  } else if (type == "Prepend") {
    steps.push_back(std::make_shared<PrependStep>(fields.text("prepend")));
  } else if (type == "ByteLevel") {
    steps.push_back(std::make_shared<ByteLevelStep>());
  } else {
    return fields.unsupported_type(type);
  }
  return fields.status();
}

}  // namespace

Result<Normalizer> Normalizer::parse(const Json& json) {
  Normalizer normalizer;
  if (!json.is_null()) TF_RETURN_IF_ERROR(parse_steps(json, 0, normalizer.steps_));
  double growth = 1;
  for (const std::shared_ptr<const Step>& step : normalizer.steps_) growth *= step->growth();
  if (growth > kMaxGrowth)
    return unsupported("tokenizer.json: normalizer: may make text {:.0f} times longer", growth);
  return normalizer;
}

std::string_view Normalizer::apply(std::string_view text, std::string& storage, std::string& spare,
                                   size_t& origin_bytes) const {
  for (const std::shared_ptr<const Step>& step : steps_) {
    if (!step->apply(text, spare, origin_bytes)) continue;
    std::swap(storage, spare);
    text = storage;
  }
  return text;
}

std::string Normalizer::apply(std::string_view text) const {
  std::string storage, spare;
  size_t origin_bytes = 0;
  return std::string(apply(text, storage, spare, origin_bytes));
}

}  // namespace tensorfold
