#include "millrace/schedule/language/tokens.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <string_view>

#include "millrace/base/text.h"

namespace millrace::language {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool in_word(char c) { return begins_word(c) || is_digit(c); }

constexpr std::array<std::string_view, 19> kSigns = {"..", "==", "!=", "<=", ">=", "{", "}",
                                                     "(",  ")",  ",",  ":",  "+",  "-", "*",
                                                     "/",  "=",  "<",  ">",  "%"};

class Lexer {
 public:
  Lexer(const std::string& text, const std::string& file) : text_(text), file_(file) {}

  std::vector<Token> run() {
    for (skip(); at_ < text_.size(); skip()) {
      next();
    }
    tokens_.push_back({Token::Kind::kEnd, "", 0, spot_});
    return std::move(tokens_);
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void advance(std::size_t count = 1) {
    for (; count > 0; --count, ++at_) {
      spot_ = text_[at_] == '\n' ? Spot{spot_.line + 1, 1} : Spot{spot_.line, spot_.column + 1};
    }
  }

  void skip() {
    while (at_ < text_.size()) {
      const char c = peek();
      if (c == '#') {
        while (at_ < text_.size() && peek() != '\n') {
          advance();
        }
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        advance();
      } else {
        return;
      }
    }
  }

  Error refuse(Spot spot, const std::string& message) const {
    return error_at(ErrorCode::kBadFile, file_, spot, message);
  }

  std::string take(bool (*belongs)(char)) {
    const std::size_t start = at_;
    while (at_ < text_.size() && belongs(peek())) {
      advance();
    }
    return text_.substr(start, at_ - start);
  }

  void next() {
    Token token{Token::Kind::kSign, "", 0, spot_};
    if (begins_word(peek())) {
      token.kind = Token::Kind::kWord;
      token.text = take(in_word);
    } else if (is_digit(peek())) {
      token.kind = Token::Kind::kNumber;
      token.text = take(in_word);
      const char* end = token.text.data() + token.text.size();
      const auto [stop, error] = std::from_chars(token.text.data(), end, token.number);
      if (error != std::errc() || stop != end) {
        throw refuse(token.spot,
                     fmt::format("expected a whole number below 2^63, found {}; a name with digits "
                                 "at its front goes between quotes",
                                 in_quotes(token.text)));
      }
    } else if (peek() == '"') {
      token.kind = Token::Kind::kText;
      advance();
      const std::size_t start = at_;
      while (at_ < text_.size() && peek() != '"' && peek() != '\n') {
        advance();
      }
      if (peek() != '"') {
        throw refuse(token.spot, "expected a closing \" in the same line");
      }
      token.text = text_.substr(start, at_ - start);
      advance();
    } else {
      for (const std::string_view sign : kSigns) {
        if (token.text.empty() && text_.compare(at_, sign.size(), sign) == 0) {
          token.text = sign;
        }
      }
      if (token.text.empty()) {
        throw refuse(spot_, fmt::format("{} has no meaning here", in_quotes(text_.substr(at_, 1))));
      }
      advance(token.text.size());
    }
    tokens_.push_back(std::move(token));
  }

  const std::string& text_;
  const std::string& file_;
  std::size_t at_ = 0;
  Spot spot_{1, 1};
  std::vector<Token> tokens_;
};

}  // namespace

std::string found(const Token& token) {
  return token.kind == Token::Kind::kEnd    ? "the end of the file"
         : token.kind == Token::Kind::kText ? fmt::format("the text \"{}\"", token.text)
                                            : in_quotes(token.text);
}

std::vector<Token> tokens_of(const std::string& text, const std::string& file) {
  return Lexer(text, file).run();
}

}  // namespace millrace::language
