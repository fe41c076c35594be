// Each pre-tokenizer type of Hugging Face's tokenizers that BPE checkpoints use, one class each.
#include "text/pre_tokenizer.h"

#include <algorithm>

#include "text/pre_tokenizer_scanner.h"
#include "text/tokenizer_byte_alphabet.h"
#include "text/tokenizer_fields.h"
#include "text/tokenizer_pattern.h"
#include "text/unicode.h"

namespace tensorfold {
namespace {

using Step = PreTokenizer::Step;
using Steps = std::vector<std::shared_ptr<const Step>>;

/// What happens to the delimiters of a split.
enum class Behavior { kRemoved, kIsolated, kContiguous, kMergedWithPrevious, kMergedWithNext };

/// A segment of a piece: a delimiter or what lies between two.
struct Segment {
  TextRange range;
  bool is_match;
};

/// Turns matches within `piece` into segments that cover it. Delimiters may be empty, gaps are not.
void cover(TextRange piece, const std::vector<TextRange>& matches, bool invert,
           std::vector<Segment>& segments) {
  segments.clear();
  size_t done = piece.begin;
  for (const TextRange& match : matches) {
    if (done != match.begin) segments.push_back({{done, match.begin}, invert});
    segments.push_back({match, !invert});
    done = match.end;
  }
  if (done != piece.end) segments.push_back({{done, piece.end}, invert});
}

/// Joins a segment to its neighbour where the behavior says so; `may_join(previous is match, this is match)`
/// looks along the direction of travel.
template <class Join>
void join_forward(const std::vector<Segment>& segments, const Join& may_join,
                  std::vector<TextRange>& pieces) {
  const size_t first = pieces.size();
  bool previous = false;
  for (const Segment& segment : segments) {
    if (may_join(previous, segment.is_match) && pieces.size() > first) {
      pieces.back().end = segment.range.end;
    } else {
      pieces.push_back(segment.range);
    }
    previous = segment.is_match;
  }
}

void join_backward(const std::vector<Segment>& segments, std::vector<TextRange>& pieces) {
  const size_t first = pieces.size();
  bool previous = false;
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
    if (segment->is_match && !previous && pieces.size() > first) {
      pieces.back().begin = segment->range.begin;
    } else {
      pieces.push_back(segment->range);
    }
    previous = segment->is_match;
  }
  std::reverse(pieces.begin() + static_cast<ptrdiff_t>(first), pieces.end());
}

void append_pieces(const std::vector<Segment>& segments, Behavior behavior, std::vector<TextRange>& pieces) {
  switch (behavior) {
    case Behavior::kRemoved:
      for (const Segment& segment : segments) {
        if (!segment.is_match) pieces.push_back(segment.range);
      }
      return;
    case Behavior::kIsolated:
      return join_forward(
          segments, [](bool, bool) { return false; }, pieces);
    case Behavior::kContiguous:
      return join_forward(
          segments, [](bool previous, bool is_match) { return previous == is_match; }, pieces);
    case Behavior::kMergedWithPrevious:
      return join_forward(
          segments, [](bool previous, bool is_match) { return is_match && !previous; }, pieces);
    case Behavior::kMergedWithNext:
      return join_backward(segments, pieces);
  }
}

/// Replaces every piece by what `cut(piece, pieces)` appends for it, without the empty ones.
template <class Cut>
void cut_pieces(PieceText& text, const Cut& cut) {
  std::vector<TextRange>& pieces = text.spare_pieces;
  pieces.clear();
  for (const TextRange& piece : text.pieces) cut(piece, pieces);
  std::erase_if(pieces, [](const TextRange& piece) { return piece.size() == 0; });
  std::swap(text.pieces, text.spare_pieces);
}

/// Rewrites every piece: `append(piece, out)` appends its new text.
template <class Append>
void rewrite_pieces(PieceText& text, const Append& append) {
  std::string& out = text.spare;
  out.clear();
  size_t new_origin = 0;
  for (TextRange& piece : text.pieces) {
    const size_t begin = out.size();
    const size_t origin_in_piece = piece.begin < text.origin_bytes ? text.origin_bytes - piece.begin : 0;
    const size_t origin_in_new_piece = append(piece, std::min(origin_in_piece, piece.size()), out);
    if (origin_in_piece > 0) new_origin = begin + origin_in_new_piece;
    piece = {begin, out.size()};
  }
  std::swap(text.storage, text.spare);
  text.text = text.storage;
  text.origin_bytes = new_origin;
}

class SplitStep : public Step {
 public:
  SplitStep(TokenizerPattern pattern, Behavior behavior, bool invert)
      : regex_(std::move(pattern.regex)), behavior_(behavior), invert_(invert) {
    if (behavior == Behavior::kIsolated) scanner_ = find_scanner(pattern.source);
  }
  void apply(PieceText& text) const override {
    if (scanner_ != nullptr) {
      text.spare_pieces.clear();
      for (const TextRange& piece : text.pieces) scanner_->scan(text.text, piece, text.spare_pieces);
      std::swap(text.pieces, text.spare_pieces);
      return;
    }
    std::vector<TextRange> matches;
    std::vector<Segment> segments;
    cut_pieces(text, [&](TextRange piece, std::vector<TextRange>& pieces) {
      matches.clear();
      regex_.find_all(text.text.substr(piece.begin, piece.size()), matches);
      for (TextRange& match : matches) match = {match.begin + piece.begin, match.end + piece.begin};
      cover(piece, matches, invert_, segments);
      append_pieces(segments, behavior_, pieces);
    });
  }

 private:
  TokenizerRegex regex_;
  std::unique_ptr<const Scanner> scanner_;  // null: search with regex_
  Behavior behavior_;
  bool invert_;
};

/// Cuts at the characters for which is_delimiter holds.
template <class Predicate>
void split_at_chars(PieceText& text, Behavior behavior, const Predicate& is_delimiter) {
  std::vector<TextRange> matches;
  std::vector<Segment> segments;
  cut_pieces(text, [&](TextRange piece, std::vector<TextRange>& pieces) {
    matches.clear();
    for (size_t pos = piece.begin; pos < piece.end;) {
      const int length = utf8_length(text.text[pos]);
      if (is_delimiter(decode_utf8(text.text.data() + pos, length))) matches.push_back({pos, pos + length});
      pos += length;
    }
    cover(piece, matches, false, segments);
    append_pieces(segments, behavior, pieces);
  });
}

class DigitsStep : public Step {
 public:
  explicit DigitsStep(bool individual)
      : behavior_(individual ? Behavior::kIsolated : Behavior::kContiguous) {}
  void apply(PieceText& text) const override { split_at_chars(text, behavior_, is_numeric); }

 private:
  Behavior behavior_;
};

enum class PrependScheme { kFirst, kNever, kAlways };

class MetaspaceStep : public Step {
 public:
  MetaspaceStep(char32_t replacement, PrependScheme scheme, bool split)
      : replacement_(replacement), scheme_(scheme), split_(split) {
    append_utf8(spelling_, replacement);
  }
  void apply(PieceText& text) const override {
    const std::string_view source = text.text;
    rewrite_pieces(text, [&](TextRange piece, size_t origin_bytes, std::string& out) {
      const size_t begin = out.size();
      const std::string_view old = source.substr(piece.begin, piece.size());
      if (must_prepend(old, origin_bytes > 0)) out += spelling_;
      size_t new_origin = origin_bytes > 0 ? out.size() - begin : 0;
      for (size_t i = 0; i < old.size(); ++i) {
        if (old[i] == ' ') {
          out += spelling_;
        } else {
          out += old[i];
        }
        if (i < origin_bytes) new_origin = out.size() - begin;
      }
      return new_origin;
    });
    if (split_)
      split_at_chars(text, Behavior::kMergedWithNext, [this](char32_t c) { return c == replacement_; });
  }

 private:
  bool must_prepend(std::string_view piece, bool is_first) const {
    if (piece.starts_with(spelling_) || piece.starts_with(' ')) return false;
    return scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && is_first);
  }

  char32_t replacement_;
  std::string spelling_;
  PrependScheme scheme_;
  bool split_;
};

class ByteLevelStep : public Step {
 public:
  ByteLevelStep(bool add_prefix_space, bool use_regex, bool spell)
      : add_prefix_space_(add_prefix_space),
        scanner_(use_regex ? find_scanner(kGpt2Pattern) : nullptr),
        spell_(spell) {}
  void apply(PieceText& text) const override {
    if (add_prefix_space_) prefix_spaces(text);
    if (scanner_ != nullptr) {
      text.spare_pieces.clear();
      for (const TextRange& piece : text.pieces) scanner_->scan(text.text, piece, text.spare_pieces);
      std::swap(text.pieces, text.spare_pieces);
    }
    if (spell_) spell_bytes(text);
  }

 private:
  static void prefix_spaces(PieceText& text) {
    const std::string_view source = text.text;
    const auto has_space = [source](const TextRange& piece) { return source[piece.begin] == ' '; };
    if (std::all_of(text.pieces.begin(), text.pieces.end(), has_space)) return;
    rewrite_pieces(text, [&](TextRange piece, size_t origin_bytes, std::string& out) {
      const bool add = !has_space(piece);
      if (add) out += ' ';
      out += source.substr(piece.begin, piece.size());
      return origin_bytes + (add && origin_bytes > 0 ? 1 : 0);
    });
  }
  static void spell_bytes(PieceText& text) {
    const std::string_view source = text.text;
    rewrite_pieces(text, [&](TextRange piece, size_t origin_bytes, std::string& out) {
      const size_t begin = out.size();
      size_t new_origin = 0;
      for (size_t i = piece.begin; i < piece.end; ++i) {
        append_byte_char(out, static_cast<uint8_t>(source[i]));
        if (i - piece.begin < origin_bytes) new_origin = out.size() - begin;
      }
      return new_origin;
    });
  }

  bool add_prefix_space_;
  std::unique_ptr<const Scanner> scanner_;  // null without use_regex
  bool spell_;
};

constexpr char kComponent[] = "tokenizer.json: pre_tokenizer";

Result<Behavior> parse_behavior(TokenizerFields& fields) {
  constexpr std::pair<std::string_view, Behavior> kBehaviors[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"Contiguous", Behavior::kContiguous},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext}};
  const std::string name = fields.text("behavior");
  for (const auto& [known, behavior] : kBehaviors) {
    if (name == known) return behavior;
  }
  fields.fail("behavior '{}' is not known", name);
  return fields.status();
}

Status parse_split(TokenizerFields& fields, Steps& steps) {
  const bool invert = fields.flag("invert");
  TF_ASSIGN_OR_RETURN(const Behavior behavior, parse_behavior(fields));
  TF_ASSIGN_OR_RETURN(TokenizerPattern pattern, parse_pattern(fields));
  TF_RETURN_IF_ERROR(fields.status());
  steps.push_back(std::make_shared<SplitStep>(std::move(pattern), behavior, invert));
  return Status();
}

Status parse_metaspace(TokenizerFields& fields, Steps& steps) {
  const std::string replacement = fields.text("replacement");
  const std::string scheme_name = fields.optional_text("prepend_scheme").value_or("always");
  const bool is_legacy_never = !fields.flag_or("add_prefix_space", true);
  const bool split = fields.flag_or("split", true);
  TF_RETURN_IF_ERROR(fields.status());
  if (replacement.empty() || static_cast<size_t>(utf8_length(replacement[0])) != replacement.size()) {
    fields.fail("replacement '{}' is not one character", replacement);
  }
  PrependScheme scheme = PrependScheme::kAlways;
  if (scheme_name == "first") scheme = PrependScheme::kFirst;
  if (scheme_name == "never") scheme = PrependScheme::kNever;
  if (scheme == PrependScheme::kAlways && scheme_name != "always") {
    fields.fail("prepend_scheme '{}' is not known", scheme_name);
  }
  if (is_legacy_never && scheme != PrependScheme::kNever) {
    fields.fail("add_prefix_space is false, but prepend_scheme is '{}'", scheme_name);
  }
  TF_RETURN_IF_ERROR(fields.status());
  const char32_t character = decode_utf8(replacement.data(), static_cast<int>(replacement.size()));
  steps.push_back(std::make_shared<MetaspaceStep>(character, scheme, split));
  return Status();
}

/// Steps of a chain, and the byte-only form of its last one if that is ByteLevel.
struct Chain {
  /// A step that rewrites can multiply the length of the text, so a file gets few of them.
  static constexpr int kMaxRewriting = 4;
  int num_rewriting = 0;
  Steps steps;
  std::shared_ptr<const Step> byte_level_without_spelling;  // of steps.back()
};

Status parse_steps(const Json& json, int depth, Chain& chain) {
  TokenizerFields fields(json, kComponent);
  const std::string type = fields.text("type");
  if (depth > kMaxComponentDepth) fields.fail("nests deeper than {} levels", kMaxComponentDepth);
  TF_RETURN_IF_ERROR(fields.status());
  if (type == "Sequence") {
    const Json::Array& items = fields.items("pretokenizers");
    TF_RETURN_IF_ERROR(fields.status());
    for (const Json& item : items) TF_RETURN_IF_ERROR(parse_steps(item, depth + 1, chain));
    return Status();
  }
  chain.byte_level_without_spelling.reset();
  if (type == "Metaspace" || type == "ByteLevel") ++chain.num_rewriting;
  if (chain.num_rewriting > Chain::kMaxRewriting) {
    return unsupported("{}: more than {} of Metaspace and ByteLevel", kComponent, Chain::kMaxRewriting);
  }
  if (type == "Split") return parse_split(fields, chain.steps);
  if (type == "Metaspace") return parse_metaspace(fields, chain.steps);
  if (type == "Digits") {
    chain.steps.push_back(std::make_shared<DigitsStep>(fields.flag("individual_digits")));
  } else if (type == "ByteLevel") {
    const bool add_prefix_space = fields.flag("add_prefix_space");
    const bool use_regex = fields.flag_or("use_regex", true);
    chain.steps.push_back(std::make_shared<ByteLevelStep>(add_prefix_space, use_regex, true));
    chain.byte_level_without_spelling = std::make_shared<ByteLevelStep>(add_prefix_space, use_regex, false);
  } else {
    return fields.unsupported_type(type);
  }
  return fields.status();
}

}  // namespace

Result<PreTokenizer> PreTokenizer::parse(const Json& json) {
  PreTokenizer result;
  if (json.is_null()) return result;
  Chain chain;
  TF_RETURN_IF_ERROR(parse_steps(json, 0, chain));
  result.steps_ = std::move(chain.steps);
  result.last_byte_level_ = std::move(chain.byte_level_without_spelling);
  return result;
}

void PreTokenizer::apply(PieceText& text, bool keep_bytes) const {
  TF_CHECK(!keep_bytes || ends_in_byte_level());
  for (size_t i = 0; i + (keep_bytes ? 1 : 0) < steps_.size(); ++i) steps_[i]->apply(text);
  if (keep_bytes) last_byte_level_->apply(text);
}

}  // namespace tensorfold
