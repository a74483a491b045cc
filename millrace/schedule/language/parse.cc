#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/schedule/language/tokens.h"
#include "millrace/schedule/policy.h"

namespace millrace::language {
namespace {

// Blocks and brackets inside one another; deeper ones would use up the parser's own stack.
constexpr int kDeepest = 64;
constexpr int64_t kMostRanks = 4096;
constexpr int64_t kMostMicrobatches = 1'000'000;

// What an expression may speak of where it stands.
enum class Scope {
  kShape,  // P, M and V
  kRank,   // also the rank r
  kScore,  // P, M, V, the stage s and the index i of a microbatch
};

struct Name {
  std::string text;
  int slot = 0;
  bool of_rank = false;  // differs by rank
};

class Parser {
 public:
  Parser(const std::string& text, const std::string& file) : tokens_(tokens_of(text, file)) {
    program_.file = file;
  }

  Program run() {
    parse_header();
    while (now().kind != Token::Kind::kEnd) {
      parse_top();
    }
    program_.end = now().spot;
    if (!has_placement_) {
      throw refuse(now(),
                   "the placement is missing; add `placement linear`, looped, v, bidirectional or "
                   "explicit { ... }");
    }
    check_policies();
    if (program_.statements.empty()) {
      throw refuse(now(),
                   "the order is missing; add forwards { ... } and backwards { ... }, order { ... "
                   "}, list { ... } or actions { ... }");
    }
    return std::move(program_);
  }

 private:
  const Token& now() const { return tokens_[at_]; }
  const Token& take() {
    const Token& token = tokens_[at_];
    at_ += token.kind == Token::Kind::kEnd ? 0 : 1;
    return token;
  }
  bool taken(const char* word) {
    const bool is = now().is(word);
    at_ += is ? 1 : 0;
    return is;
  }

  Error refuse(const Token& token, const std::string& message) const {
    return error_at(ErrorCode::kBadFile, program_.file, token.spot, message);
  }
  Error unexpected(const std::string& expected, const std::vector<std::string>& words = {}) const {
    const std::string hint =
        now().kind == Token::Kind::kWord ? did_you_mean(now().text, words) : std::string();
    return refuse(now(), fmt::format("expected {}, found {}{}", expected, found(now()), hint));
  }
  void need(const char* sign, const char* where) {
    if (!taken(sign)) {
      throw unexpected(fmt::format("`{}` {}", sign, where));
    }
  }
  std::string need_text(const char* what) {
    if (now().kind != Token::Kind::kText) {
      throw unexpected(fmt::format("{} between quotes", what));
    }
    return take().text;
  }
  int64_t need_number(const std::string& what, int64_t least, int64_t most) {
    if (now().kind != Token::Kind::kNumber || now().number < least || now().number > most) {
      throw unexpected(fmt::format("{}, a number in {}..{}", what, least, most));
    }
    return take().number;
  }
  // One of the words, by its place among them.
  std::size_t need_word(const std::string& what, const std::vector<std::string>& words) {
    const auto known = std::find(words.begin(), words.end(), now().text);
    if (now().kind != Token::Kind::kWord || known == words.end()) {
      throw unexpected(fmt::format("{}: {}", what, join(words, ", ")), words);
    }
    take();
    return static_cast<std::size_t>(known - words.begin());
  }
  class Deeper {
   public:
    explicit Deeper(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kDeepest) {
        throw parser_.refuse(parser_.now(), fmt::format("more than {} levels deep", kDeepest));
      }
    }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    ~Deeper() { --parser_.depth_; }

   private:
    Parser& parser_;
  };

  void parse_header() {
    if (!taken("schedule")) {
      throw unexpected("`schedule \"NAME\"` at the front");
    }
    const Token& name = now();
    program_.name = need_text("the schedule's name");
    if (program_.name.empty()) {
      throw refuse(name, "the schedule's name is empty");
    }
    if (now().kind == Token::Kind::kText) {
      program_.text = take().text;
    }
  }

  void parse_top() {
    static const std::vector<std::string> words = {"placement", "ranks",     "microbatches",
                                                   "chunks",    "require",   "flush",
                                                   "policy",    "recompute", "operation"};
    const Token& token = now();
    const auto known = std::find(words.begin(), words.end(), token.text);
    if (token.kind != Token::Kind::kWord || known == words.end()) {
      program_.statements.push_back(parse_statement(words));
      return;
    }
    take();
    if (token.text != "require" && token.text != "operation") {
      if (std::find(seen_.begin(), seen_.end(), token.text) != seen_.end()) {
        throw refuse(token, fmt::format("`{}` stands here a second time", token.text));
      }
      seen_.push_back(token.text);
    }
    if (token.text == "placement") {
      parse_placement(token);
    } else if (token.text == "ranks") {
      program_.ranks = static_cast<int>(need_number("how many ranks", 1, kMostRanks));
    } else if (token.text == "microbatches") {
      program_.microbatches =
          static_cast<int>(need_number("how many microbatches", 1, kMostMicrobatches));
    } else if (token.text == "chunks") {
      program_.chunks = static_cast<int>(need_number("how many chunks", 1, kMostRanks));
    } else if (token.text == "require") {
      Requirement& requirement = program_.requirements.emplace_back();
      requirement.condition = parse_expression(Scope::kShape);
      requirement.reason = need_text("the reason for which others are refused");
    } else if (token.text == "flush") {
      program_.flush = need_word("whether a step is drained", {"no", "yes"}) == 1;
    } else if (token.text == "policy") {
      parse_policies();
    } else if (token.text == "recompute") {
      program_.recompute =
          static_cast<Recompute>(need_word("what is computed again", {"none", "stage", "layer"}));
    } else {
      parse_operation(token);
    }
  }

  void parse_placement(const Token& token) {
    static const std::vector<std::string> kinds = {"linear", "looped", "v"};
    Placement& placement = program_.placement;
    has_placement_ = true;
    placement.spot = token.spot;
    if (taken("explicit")) {
      placement.kind = Placement::Kind::kExplicit;
      do {
        placement.routes.push_back(parse_block(Scope::kShape, {}));
      } while (now().is("{"));
      return;
    }
    placement.both_ways = taken("bidirectional");
    if (placement.both_ways && std::find(kinds.begin(), kinds.end(), now().text) == kinds.end()) {
      return;
    }
    std::vector<std::string> words = kinds;
    words.insert(words.end(), {"bidirectional", "explicit"});
    placement.kind = static_cast<Placement::Kind>(need_word("a placement", words));
  }

  void parse_policies() {
    std::vector<std::string> names;
    for (const PolicyEntry& entry : policies()) {
      names.push_back(entry.name);
    }
    do {
      policy_spots_.push_back(now());
      need_word("a weight policy", names);
      program_.policies.push_back(policy_spots_.back().text);
    } while (std::find(names.begin(), names.end(), now().text) != names.end());
  }

  void check_policies() {
    if (program_.policies.empty() && !program_.flush) {
      throw refuse(now(),
                   "a schedule without a flush names its weight policy; add `policy stash` "
                   "or another of `millrace list policies`");
    }
    for (const Token& token : policy_spots_) {
      if (find_policy(token.text).needs_flush != program_.flush) {
        throw refuse(token, fmt::format("policy {} does not fit `flush {}`", token.text,
                                        program_.flush ? "yes" : "no"));
      }
    }
    if (program_.policies.empty()) {
      program_.policies = {"flush"};
    }
  }

  void parse_operation(const Token& token) {
    Operation& operation = program_.operations.emplace_back();
    operation.spot = token.spot;
    if (now().kind != Token::Kind::kWord) {
      throw unexpected("the operation's name");
    }
    operation.name = take().text;
    operation.before = need_word("where it stands", {"after", "before"}) == 1;
    operation.action = need_kind({"F", "B", "I", "W"});
  }

  ActionKind need_kind(const std::vector<std::string>& kinds) {
    static const std::vector<std::pair<std::string, ActionKind>> all = {
        {"F", ActionKind::kForward},
        {"B", ActionKind::kBackward},
        {"I", ActionKind::kInputGradient},
        {"W", ActionKind::kWeightGradient}};
    const std::string name = kinds[need_word("an action", kinds)];
    return std::find_if(all.begin(), all.end(),
                        [&](const auto& kind) { return kind.first == name; })
        ->second;
  }

  static const std::vector<std::string>& statement_words() {
    static const std::vector<std::string> words = {
        "let",     "forwards",   "backwards", "order", "list", "actions",
        "warm_up", "interleave", "in_flight", "split", "when"};
    return words;
  }
  bool is_statement() const {
    const std::vector<std::string>& words = statement_words();
    return now().kind == Token::Kind::kWord &&
           std::find(words.begin(), words.end(), now().text) != words.end();
  }

  Statement parse_statement(const std::vector<std::string>& others) {
    using What = Statement::Kind;
    const Deeper deeper(*this);
    Statement statement;
    statement.spot = now().spot;
    if (!is_statement()) {
      std::vector<std::string> words = others;
      words.insert(words.end(), statement_words().begin(), statement_words().end());
      throw unexpected(fmt::format("one of {}", join(words, ", ")), words);
    }
    const std::vector<std::string>& words = statement_words();
    statement.kind =
        static_cast<What>(std::find(words.begin(), words.end(), take().text) - words.begin());
    switch (statement.kind) {
      case What::kLet:
        parse_let(statement);
        break;
      case What::kForwards:
        statement.steps = parse_block(Scope::kRank, {"F"});
        break;
      case What::kBackwards:
        statement.steps = parse_block(Scope::kRank, {"B"});
        break;
      case What::kOrder:
        statement.steps = parse_block(Scope::kRank, {"F", "B", "I", "W"});
        break;
      case What::kList:
        parse_list(statement);
        break;
      case What::kActions:
        parse_actions_of(statement);
        break;
      case What::kWarmUp:
      case What::kInFlight:
        statement.value = parse_expression(Scope::kRank);
        break;
      case What::kInterleave:
        statement.numbers[0] = need_number("forwards in a row", 1, kMostMicrobatches);
        need(":", "between forwards and backwards");
        statement.numbers[1] = need_number("backwards in a row", 1, kMostMicrobatches);
        break;
      case What::kSplit:
        parse_split(statement);
        break;
      case What::kWhen:
        parse_when(statement);
        break;
    }
    return statement;
  }

  std::string need_new_name() {
    static const std::vector<std::string> own = {"P",   "M",  "V",   "r",   "min",   "max",  "F",
                                                 "B",   "I",  "W",   "if",  "then",  "else", "mod",
                                                 "and", "or", "not", "for", "repeat"};
    if (now().kind != Token::Kind::kWord) {
      throw unexpected("a name");
    }
    if (std::find(own.begin(), own.end(), now().text) != own.end()) {
      throw refuse(now(),
                   fmt::format("`{}` has a meaning of its own; take another name", now().text));
    }
    return take().text;
  }

  void parse_let(Statement& statement) {
    const std::string name = need_new_name();
    need("=", "after the name");
    uses_rank_ = false;
    statement.value = parse_expression(Scope::kRank);
    statement.of_rank = uses_rank_;
    statement.slot = add_name(name, uses_rank_);
  }
  int add_name(const std::string& name, bool of_rank) {
    names_.push_back({name, program_.num_slots, of_rank});
    return program_.num_slots++;
  }

  void parse_split(Statement& statement) {
    if (!taken("weights")) {
      return;
    }
    statement.weights =
        static_cast<WeightPlace>(need_word("where W stands", {"lag", "last", "together"}));
    if (statement.weights == WeightPlace::kLag) {
      statement.value = parse_expression(Scope::kRank);
    }
  }

  void parse_when(Statement& statement) {
    statement.value = parse_expression(Scope::kShape);
    const auto block = [&](std::vector<Statement>& into) {
      const std::size_t outer = names_.size();
      need("{", "before the statements");
      while (!taken("}")) {
        into.push_back(parse_statement({"}"}));
      }
      names_.resize(outer);
    };
    block(statement.then);
    if (taken("else")) {
      block(statement.otherwise);
    }
  }

  void parse_list(Statement& statement) {
    need("{", "after `list`");
    while (!taken("}")) {
      if (taken("times")) {
        for (int part = 0; part < 3 && (part == 0 || taken(":")); ++part) {
          statement.list.times[part] = need_number("slots of an action", 1, kMostMicrobatches);
        }
        continue;
      }
      if (!taken("score")) {
        throw unexpected("`score`, `times` or `}`", {"score", "times"});
      }
      const Token& token = now();
      const ActionKind kind = need_kind({"F", "B", "I", "W"});
      need("=", "after the action");
      for (const auto& [other, value] : statement.list.scores) {
        if (other == kind) {
          throw refuse(token, fmt::format("a second score of {}", token.text));
        }
      }
      statement.list.scores.emplace_back(kind, parse_expression(Scope::kScore));
    }
  }

  void parse_actions_of(Statement& statement) {
    need("{", "after `actions`");
    while (!taken("}")) {
      if (!taken("rank")) {
        throw unexpected("`rank N \"0F0 0B0 ...\"` or `}`", {"rank"});
      }
      const auto rank = static_cast<std::size_t>(
          need_number("the next rank", static_cast<int64_t>(statement.actions.size()),
                      static_cast<int64_t>(statement.actions.size())));
      MILLRACE_CHECK(rank == statement.actions.size());
      const Token& token = now();
      const std::string text = need_text("the rank's actions");
      statement.actions.emplace_back();
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find(' ', at), text.size());
        const Spot spot{token.spot.line, token.spot.column + 1 + static_cast<int>(at)};
        if (end > at) {
          try {
            statement.actions.back().emplace_back(parse_action(text.substr(at, end - at)), spot);
          } catch (const Error& error) {
            throw error_at(ErrorCode::kBadFile, program_.file, spot, error.message());
          }
        }
        at = end + 1;
      }
    }
  }

  // Steps between braces. Without kinds they are the ranks of a placement.
  std::vector<Step> parse_block(Scope scope, const std::vector<std::string>& kinds) {
    const Deeper deeper(*this);
    std::vector<Step> steps;
    need("{", "before the block");
    while (!taken("}")) {
      steps.push_back(parse_step(scope, kinds));
    }
    return steps;
  }

  Step parse_step(Scope scope, const std::vector<std::string>& kinds) {
    Step step;
    step.spot = now().spot;
    if (taken("for")) {
      step.kind = Step::Kind::kFor;
      const std::string name = need_new_name();
      if (!taken("in")) {
        throw unexpected("`in` after the name");
      }
      step.values.push_back(parse_expression(scope));
      need("..", "between the first value and the one behind the last");
      step.values.push_back(parse_expression(scope));
      const std::size_t outer = names_.size();
      step.slot = add_name(name, scope == Scope::kRank);
      step.body = parse_block(scope, kinds);
      names_.resize(outer);
    } else if (taken("repeat")) {
      step.kind = Step::Kind::kRepeat;
      step.values.push_back(parse_expression(scope));
      step.body = parse_block(scope, kinds);
    } else if (taken("if")) {
      step.kind = Step::Kind::kIf;
      step.values.push_back(parse_expression(scope));
      step.body = parse_block(scope, kinds);
      if (taken("else")) {
        step.otherwise = parse_block(scope, kinds);
      }
    } else if (kinds.empty()) {
      step.kind = Step::Kind::kRank;
      step.values.push_back(parse_expression(scope));
    } else {
      std::vector<std::string> words = kinds;
      words.insert(words.end(), {"for", "repeat", "if"});
      if (std::find(kinds.begin(), kinds.end(), now().text) == kinds.end()) {
        throw unexpected(fmt::format("one of {} or `}}`", join(words, ", ")), words);
      }
      step.action = need_kind(kinds);
      need("(", "before the stage");
      step.values.push_back(parse_expression(scope));
      if (taken(",")) {
        step.values.push_back(parse_expression(scope));
      }
      need(")", "after the stage and the microbatch");
    }
    return step;
  }

  using Kind = Expression::Kind;

  static Expression joined(Kind kind, const Token& sign, Expression a, Expression b) {
    Expression result;
    result.kind = kind;
    result.spot = sign.spot;
    result.of.push_back(std::move(a));
    result.of.push_back(std::move(b));
    return result;
  }

  struct Operator {
    const char* sign;
    Kind kind;
  };

  Expression parse_expression(Scope scope) {
    const Deeper deeper(*this);
    const Token& token = now();
    if (!taken("if")) {
      return parse_level(scope, 0);
    }
    Expression choice;
    choice.kind = Kind::kChoose;
    choice.spot = token.spot;
    choice.of.push_back(parse_expression(scope));
    need("then", "after the condition");
    choice.of.push_back(parse_expression(scope));
    need("else", "after the first value");
    choice.of.push_back(parse_expression(scope));
    return choice;
  }

  // or; and; comparisons; + and -; *, / and mod: each level of operators binds closer.
  Expression parse_level(Scope scope, std::size_t level) {
    static const std::vector<std::vector<Operator>> levels = {
        {{"or", Kind::kOr}},
        {{"and", Kind::kAnd}},
        {{"==", Kind::kEqual},
         {"!=", Kind::kNotEqual},
         {"<=", Kind::kLessEqual},
         {"<", Kind::kLess},
         {">=", Kind::kLessEqual},
         {">", Kind::kLess}},
        {{"+", Kind::kAdd}, {"-", Kind::kSubtract}},
        {{"*", Kind::kMultiply}, {"/", Kind::kDivide}, {"mod", Kind::kModulo}}};
    if (level == levels.size()) {
      return parse_value(scope);
    }
    Expression left = parse_level(scope, level + 1);
    for (;;) {
      const Token& sign = now();
      const auto known = std::find_if(levels[level].begin(), levels[level].end(),
                                      [&](const Operator& op) { return sign.is(op.sign); });
      if (known == levels[level].end()) {
        return left;
      }
      take();
      Expression right = parse_level(scope, level + 1);
      if (sign.text[0] == '>') {  // a > b is b < a
        std::swap(left, right);
      }
      left = joined(known->kind, sign, std::move(left), std::move(right));
    }
  }

  Expression parse_value(Scope scope) {
    const Deeper deeper(*this);
    const Token& token = now();
    Expression result;
    result.spot = token.spot;
    if (token.kind == Token::Kind::kNumber) {
      result.number = take().number;
    } else if (taken("-")) {
      result = joined(Kind::kSubtract, token, result, parse_value(scope));
    } else if (taken("not")) {
      result.kind = Kind::kNot;
      result.of.push_back(parse_value(scope));
    } else if (taken("(")) {
      result = parse_expression(scope);
      need(")", "after the expression");
    } else if (token.is("min") || token.is("max")) {
      const Kind kind = token.is("min") ? Kind::kMinimum : Kind::kMaximum;
      take();
      need("(", "after min or max");
      result = parse_expression(scope);
      while (taken(",")) {
        result = joined(kind, token, std::move(result), parse_expression(scope));
      }
      need(")", "after the last value");
    } else {
      result.kind = Kind::kName;
      result.number = need_name(scope);
    }
    return result;
  }

  int need_name(Scope scope) {
    const Token& token = now();
    if (token.kind != Token::Kind::kWord) {
      throw unexpected("a number, a name or `(`");
    }
    for (auto name = names_.rbegin(); name != names_.rend(); ++name) {
      if (name->text == token.text) {
        check_rank(token, scope, name->of_rank);
        take();
        return name->slot;
      }
    }
    static const std::vector<std::pair<std::string, int>> own = {
        {"P", kP}, {"M", kM}, {"V", kV}, {"r", kRank}, {"s", kStage}, {"i", kIndex}};
    std::vector<std::string> words = {"min", "max"};
    for (const auto& [word, slot] : own) {
      if ((slot == kStage || slot == kIndex) && scope != Scope::kScore) {
        continue;
      }
      words.push_back(word);
      if (word == token.text) {
        check_rank(token, scope, slot == kRank);
        take();
        return slot;
      }
    }
    for (const Name& name : names_) {
      words.push_back(name.text);
    }
    throw unexpected("a number, or a name that has a value here", words);
  }

  void check_rank(const Token& token, Scope scope, bool of_rank) {
    if (of_rank && scope != Scope::kRank) {
      throw refuse(token, fmt::format("`{}` differs by rank, and here one value is needed for all "
                                      "ranks",
                                      token.text));
    }
    uses_rank_ = uses_rank_ || of_rank;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool has_placement_ = false;
  bool uses_rank_ = false;
  std::vector<std::string> seen_;
  std::vector<Name> names_;
  std::vector<Token> policy_spots_;
  Program program_;
};

}  // namespace

Program parse(const std::string& text, const std::string& file) { return Parser(text, file).run(); }

}  // namespace millrace::language
