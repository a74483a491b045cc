// `millrace profile --predict`, once the run is read.
#pragma once

#include <cstdint>

#include "millrace/cli/common/options.h"
#include "millrace/cli/common/output.h"
#include "millrace/train/prepare.h"

namespace millrace::cli {

// The profile of `job` at `samples` samples, its times predicted by the model in `args.predict`.
// Takes layers that it measures out of the job's model. Returns the exit status; throws Error on a
// file that is no such model.
int predicted_of(const ProfileArgs& args, const RunConfig& config, Job& job, int64_t samples,
                 Output& output);

}  // namespace millrace::cli
