// The words, numbers, texts and signs of a .sched file. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "millrace/schedule/language/syntax.h"

namespace millrace::language {

struct Token {
  enum class Kind { kWord, kNumber, kText, kSign, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;  // of kText: what stands between the quotes
  int64_t number = 0;
  Spot spot;

  bool is(const char* word) const {
    return (kind == Kind::kWord || kind == Kind::kSign) && text == word;
  }
};

// What was found, for messages: "`forwards`", "the end of the file".
std::string found(const Token& token);

// Comments run from # to the end of the line; line breaks separate like blanks. The last token is
// kEnd. Throws Error(kBadFile) at a character, number or text that has no meaning.
std::vector<Token> tokens_of(const std::string& text, const std::string& file);

}  // namespace millrace::language
