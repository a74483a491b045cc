// Proof that a collective program is well formed, and what it sends. Used by tests over all entries
// and by whoever executes a program that no builtin made. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/collective/program.h"

namespace millrace {

struct ProgramFinding {
  int member = 0;
  int op = 0;  // index in the member's list; its length when something is missing at the end
  std::string text;
};

// Everything that breaks what program.h promises: places inside their buffers and not empty, blocks
// that do not tile their message, sums of unequal sizes, messages without their other end or with
// one of another size, step or kind, steps out of order or with two messages (steps in order leave
// no circle of waits); and, when those hold, places that are written again while a receiver may not
// have them yet. Empty when the program can run. That it adds up is another matter (tests run it).
std::vector<ProgramFinding> check_program(const CollectiveProgram& program);

struct ProgramCounts {
  std::vector<int64_t> sent_elements;  // by member
  int64_t total_elements = 0;          // their sum
  int64_t num_messages = 0;
  int num_steps = 0;  // steps in which anything is sent
};
// Of a program without findings.
ProgramCounts count_program(const CollectiveProgram& program);

}  // namespace millrace
