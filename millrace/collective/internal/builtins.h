// The symbols that builtin.def names, one a file under builtin/. Used by the registry and those
// files only.
#pragma once

#include "millrace/collective/program.h"

namespace millrace::builtin_collectives {

#define COLLECTIVE(name, symbol, text, steps, sends) extern const CollectiveBuiltin symbol;
#include "millrace/collective/builtin.def"
#undef COLLECTIVE

}  // namespace millrace::builtin_collectives
