// GPT-2's spelling of bytes as printable characters, which byte-level vocabularies are written in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tensorfold {

/// The character of a byte: 21..7E, A1..AC and AE..FF are themselves, the other 68 bytes in order U+0100,
/// U+0101, ...
char32_t byte_char(uint8_t byte);

/// Appends byte_char(byte) as UTF-8.
void append_byte_char(std::string& out, uint8_t byte);

/// Appends the bytes that the characters of `text` (valid UTF-8) spell and returns true; where one of them is
/// no byte_char, leaves `out` as it was and returns false.
bool append_spelled_bytes(std::string& out, std::string_view text);

}  // namespace tensorfold
