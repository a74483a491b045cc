#include <fmt/format.h>

#include <algorithm>

#include "millrace/schedule/language/syntax.h"

namespace millrace::language {

Error error_at(ErrorCode code, const std::string& file, Spot spot, const std::string& message) {
  Error error(code, fmt::format("column {}: {}", spot.column, message));
  error.in_file(file, spot.line);
  return error;
}

int64_t Values::of(const Expression& expression) const {
  using Kind = Expression::Kind;
  if (expression.kind == Kind::kNumber) {
    return expression.number;
  }
  if (expression.kind == Kind::kName) {
    return at(static_cast<int>(expression.number));
  }
  const int64_t a = of(expression.of[0]);
  if (expression.kind == Kind::kChoose) {
    return of(expression.of[a != 0 ? 1 : 2]);
  }
  if (expression.kind == Kind::kNot) {
    return a == 0 ? 1 : 0;
  }
  const int64_t b = of(expression.of[1]);
  const auto refuse = [&](const std::string& text) {
    return error_at(ErrorCode::kInvalidArgument, file_, expression.spot, text);
  };
  int64_t result = 0;
  bool beyond = false;
  switch (expression.kind) {
    case Kind::kAdd:
      beyond = __builtin_add_overflow(a, b, &result);
      break;
    case Kind::kSubtract:
      beyond = __builtin_sub_overflow(a, b, &result);
      break;
    case Kind::kMultiply:
      beyond = __builtin_mul_overflow(a, b, &result);
      break;
    case Kind::kDivide:
    case Kind::kModulo: {
      if (b == 0) {
        throw refuse(fmt::format("{} divided by 0; guard it with max(1, ...)", a));
      }
      if (b == -1) {  // the one quotient that can lie beyond 64 bits
        beyond = expression.kind == Kind::kDivide && __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      const bool down = a % b != 0 && (a < 0) != (b < 0);
      result = expression.kind == Kind::kDivide ? a / b - (down ? 1 : 0) : a % b + (down ? b : 0);
      break;
    }
    case Kind::kMinimum:
      result = std::min(a, b);
      break;
    case Kind::kMaximum:
      result = std::max(a, b);
      break;
    case Kind::kEqual:
      result = a == b ? 1 : 0;
      break;
    case Kind::kNotEqual:
      result = a != b ? 1 : 0;
      break;
    case Kind::kLess:
      result = a < b ? 1 : 0;
      break;
    case Kind::kLessEqual:
      result = a <= b ? 1 : 0;
      break;
    case Kind::kAnd:
      result = a != 0 && b != 0 ? 1 : 0;
      break;
    default:
      result = a != 0 || b != 0 ? 1 : 0;
      break;
  }
  if (beyond) {
    throw refuse("the result is beyond 64 bits");
  }
  return result;
}

}  // namespace millrace::language
