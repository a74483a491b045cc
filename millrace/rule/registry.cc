// The table of exchange rules. builtin.def is read twice: to declare the factories, then to list
// them; a registrar object in each file would vanish from a static library without a warning.
#include <fmt/format.h>

#include <charconv>

#include "millrace/base/error.h"
#include "millrace/base/find_entry.h"
#include "millrace/base/text.h"
#include "millrace/rule/rule.h"

namespace millrace {

namespace builtin_rules {
#define RULE(name, symbol, traits, text, conserves, sends, staleness, keys) \
  std::unique_ptr<Rule> symbol(const RuleConfig& config);
#include "millrace/rule/builtin.def"
#undef RULE
}  // namespace builtin_rules

namespace {

constexpr unsigned kEqualReplicas = 1;
constexpr unsigned kSumsGradients = 2;
constexpr unsigned kServes = 4;
constexpr unsigned kOrdered = 8;
constexpr unsigned kOverlaps = 16;
constexpr unsigned kAnyPace = 32;

RuleTraits traits_of(unsigned traits) {
  return {.equal_replicas = (traits & kEqualReplicas) != 0,
          .sums_gradients = (traits & kSumsGradients) != 0,
          .serves = (traits & kServes) != 0,
          .ordered = (traits & kOrdered) != 0,
          .any_pace = (traits & kAnyPace) != 0,
          .overlaps = (traits & kOverlaps) != 0};
}

// A default as builtin.def writes it.
Value value_of(const std::string& text) {
  if (text == "true" || text == "false") {
    return Value::of(text == "true");
  }
  int64_t integer = 0;
  const char* end = text.data() + text.size();
  if (const auto [at, error] = std::from_chars(text.data(), end, integer);
      error == std::errc() && at == end) {
    return Value::of(integer);
  }
  double number = 0;
  if (const auto [at, error] = std::from_chars(text.data(), end, number);
      error == std::errc() && at == end) {
    return Value::of(number);
  }
  return Value::of(text);
}

bool fits(Value::Kind wanted, const Value& value) {
  return wanted == value.kind ||
         (wanted == Value::Kind::kFloat && value.kind == Value::Kind::kInteger);
}

std::string text_of(Value::Kind kind) {
  switch (kind) {
    case Value::Kind::kBool:
      return "true or false";
    case Value::Kind::kInteger:
      return "a whole number";
    case Value::Kind::kFloat:
      return "a number";
    default:
      return "a word";
  }
}

}  // namespace

const std::vector<RuleEntry>& rules() {
  static const std::vector<RuleEntry> entries = {
#define RULE(name, symbol, traits, text, conserves, sends, staleness, keys) \
  {name, traits_of(traits), text, conserves, sends, staleness, keys, &builtin_rules::symbol},
#include "millrace/rule/builtin.def"
#undef RULE
  };
  return entries;
}

const RuleEntry& find_rule(const std::string& name) {
  return find_entry(rules(), name, "an exchange rule");
}

RuleOptions settle_rule(const RuleEntry& rule, const Value& given) {
  Value values = Value::map();
  std::vector<std::string> names;
  for (const std::string& key : split(rule.keys, ' ')) {
    if (const std::size_t equals = key.find('='); equals != std::string::npos) {
      names.push_back(key.substr(0, equals));
      values.set(names.back(), value_of(key.substr(equals + 1)));
    }
  }
  for (const auto& [key, value] : given.object) {
    const Value* known = values.find(key);
    if (known == nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  names.empty() ? fmt::format("rule {} has no options, found `{}`", rule.name, key)
                                : fmt::format("rule {} has no option `{}`{}; it has: {}", rule.name,
                                              key, did_you_mean(key, names), join(names, ", ")))
          .at_key("rule." + key);
    }
    if (!fits(known->kind, value)) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("expected {} for option `{}` of rule {}",
                                                           text_of(known->kind), key, rule.name))
          .at_key("rule." + key);
    }
    values.set(key, known->kind == Value::Kind::kFloat ? Value::of(value.number) : value);
  }
  return RuleOptions(std::move(values));
}

void check_rule_config(const RuleConfig& config) {
  if (config.num_members < 1 || config.member < 0 || config.member >= config.num_members) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a rule needs 0 <= member < num_members, found member {} of {}",
                            config.member, config.num_members));
  }
}

void refuse_option(const RuleConfig& config, std::string_view key, const std::string& expected) {
  const Value& value = *config.options.values().find(key);
  const std::string found =
      value.kind == Value::Kind::kString ? value.string : fmt::format("{:g}", value.number);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("expected {} for `{}`, found {}", expected, key, found))
      .at_key("rule." + std::string(key));
}

const Value& RuleOptions::at(std::string_view key) const {
  const Value* value = values_.find(key);
  MILLRACE_CHECK(value != nullptr, fmt::format("no option `{}`", key));
  return *value;
}

double RuleOptions::number(std::string_view key) const { return at(key).number; }
int64_t RuleOptions::integer(std::string_view key) const { return at(key).integer; }
bool RuleOptions::flag(std::string_view key) const { return at(key).boolean; }
const std::string& RuleOptions::word(std::string_view key) const { return at(key).string; }

}  // namespace millrace
