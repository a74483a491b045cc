// The [train] table of run.toml. Private to core; run_config.cc reads and writes it as part of the
// whole.
#pragma once

#include "millrace/core/run_config.h"

namespace millrace::internal {

// Reads every key of the table and finishes it. Keys of the chosen learning rate schedule are
// checked against its entry; keys of optimizers for their ranges alone, since the table of
// optimizers is another folder's.
TrainConfig train_from(Reader& reader);

// Every key that the chosen learning rate schedule uses, and those of the optimizer that are set.
Value to_value(const TrainConfig& config);

}  // namespace millrace::internal
