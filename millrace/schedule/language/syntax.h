// The schedule language as a tree: what the parser makes of a .sched file and the builder walks.
// Plain values. docs/schedule-language.md has the grammar.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/core/action.h"
#include "millrace/core/plan.h"

namespace millrace::language {

// Line and column in the file, from 1.
struct Spot {
  int line = 0;
  int column = 0;
};

// "file:line: column C: message".
Error error_at(ErrorCode code, const std::string& file, Spot spot, const std::string& message);

// Every name has a slot of its own, so that an expression is evaluated without looking names up.
// These are the language's own; `let` and `for` add more.
enum Slot : int { kP, kM, kV, kRank, kStage, kIndex, kFirstFree };

struct Expression {
  enum class Kind {
    kNumber,  // `number`
    kName,    // the slot `number`
    kAdd,
    kSubtract,
    kMultiply,
    kDivide,  // rounds down
    kModulo,  // of the sign of the divisor
    kMinimum,
    kMaximum,
    kEqual,  // from here on 1 or 0
    kNotEqual,
    kLess,
    kLessEqual,
    kAnd,
    kOr,
    kNot,
    kChoose,  // if, then, else
  };
  Kind kind = Kind::kNumber;
  int64_t number = 0;
  std::vector<Expression> of;
  Spot spot;
};

// One step of a block: what an order or an explicit placement is made of.
struct Step {
  enum class Kind {
    kAction,  // action(values[0]) or action(values[0], values[1]): stage and microbatch
    kRank,    // values[0]: in a placement, the rank of the next stage
    kFor,     // slot from values[0] up to, not including, values[1]
    kRepeat,  // values[0] times
    kIf,      // values[0]; body or otherwise
  };
  Kind kind = Kind::kAction;
  Spot spot;
  ActionKind action = ActionKind::kForward;
  int slot = 0;
  std::vector<Expression> values;
  std::vector<Step> body;
  std::vector<Step> otherwise;
};

// How list scheduling chooses.
struct ListOrder {
  std::vector<std::pair<ActionKind, Expression>> scores;  // of F, and B or I and W
  int64_t times[3] = {1, 2, 1};                           // of F, B or I, W
};

enum class WeightPlace {
  kLag,       // the k-th W directly after the I that is `value` later; the rest at the end
  kLast,      // all at the end
  kTogether,  // all at the end, consecutive microbatches of a stage in one call
};

// A statement about the order. `when` chooses among them by P, M and V.
struct Statement {
  enum class Kind {
    kLet,  // slot = value
    kForwards,
    kBackwards,
    kOrder,
    kList,
    kActions,
    kWarmUp,      // value
    kInterleave,  // numbers
    kInFlight,    // value
    kSplit,
    kWhen,  // value; then or otherwise
  };
  Kind kind = Kind::kLet;
  Spot spot;
  int slot = 0;
  bool of_rank = false;  // a `let` whose value differs by rank
  Expression value;
  std::vector<Step> steps;
  ListOrder list;
  int64_t numbers[2] = {1, 1};
  WeightPlace weights = WeightPlace::kLag;
  std::vector<std::vector<std::pair<Action, Spot>>> actions;  // of each rank
  std::vector<Statement> then;
  std::vector<Statement> otherwise;
};

struct Placement {
  enum class Kind { kLinear, kLooped, kV, kExplicit };
  Kind kind = Kind::kLinear;
  bool both_ways = false;
  std::vector<std::vector<Step>> routes;  // of kExplicit
  Spot spot;
};

struct Requirement {
  Expression condition;
  std::string reason;
};

// An operation that the file adds to those of training: carried, and refused when a schedule is
// made, until something executes it.
struct Operation {
  std::string name;
  bool before = false;  // else after
  ActionKind action = ActionKind::kForward;
  Spot spot;
};

struct Program {
  std::string file;
  std::string name;
  std::string text;  // in one line; may be empty
  Placement placement;
  int ranks = 0;         // the only number taken; 0: any
  int microbatches = 0;  // likewise
  int chunks = 0;        // by default; 0: the placement's own
  bool flush = true;
  std::vector<std::string> policies;
  Recompute recompute = Recompute::kNothing;
  std::vector<Requirement> requirements;
  std::vector<Operation> operations;
  std::vector<Statement> statements;
  int num_slots = kFirstFree;
  Spot end;  // of the file
};

// Throws Error(kBadFile) with file, line and column, what was expected and, for a misspelt word,
// the nearest one there is.
Program parse(const std::string& text, const std::string& file);

// The values of all slots, and what expressions make of them.
class Values {
 public:
  explicit Values(const Program& program)
      : file_(program.file), slots_(static_cast<std::size_t>(program.num_slots)) {}
  void set(int slot, int64_t value) { slots_[static_cast<std::size_t>(slot)] = value; }
  int64_t at(int slot) const { return slots_[static_cast<std::size_t>(slot)]; }
  // Throws Error(kInvalidArgument) for a division by 0 and a result beyond 64 bits.
  int64_t of(const Expression& expression) const;

 private:
  std::string file_;
  std::vector<int64_t> slots_;
};

}  // namespace millrace::language
