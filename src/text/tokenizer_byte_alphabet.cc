// text/tokenizer_byte_alphabet.h
#include "text/tokenizer_byte_alphabet.h"

#include <array>

#include "text/unicode.h"

namespace tensorfold {
namespace {

constexpr char32_t kNumChars = 0x144;  // U+0143 is the last of the 68

struct Alphabet {
  std::array<char32_t, 256> char_of{};
  std::array<int16_t, kNumChars> byte_of{};  // -1: no byte

  Alphabet() {
    byte_of.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
      char_of[byte] = printable ? static_cast<char32_t>(byte) : next++;
      byte_of[char_of[byte]] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet kAlphabet;
  return kAlphabet;
}

}  // namespace

char32_t byte_char(uint8_t byte) { return alphabet().char_of[byte]; }

void append_byte_char(std::string& out, uint8_t byte) { append_utf8(out, byte_char(byte)); }

bool append_spelled_bytes(std::string& out, std::string_view text) {
  const Alphabet& a = alphabet();
  const size_t old_size = out.size();
  for (size_t pos = 0; pos < text.size();) {
    const int length = utf8_length(text[pos]);
    const char32_t c = decode_utf8(text.data() + pos, length);
    if (c >= kNumChars || a.byte_of[c] < 0) {
      out.resize(old_size);
      return false;
    }
    out += static_cast<char>(a.byte_of[c]);
    pos += length;
  }
  return true;
}

}  // namespace tensorfold
