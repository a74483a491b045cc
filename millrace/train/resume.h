// Resume: whether a run can go on from a checkpoint. Asked before anything is measured or written.
// A pure function.
#pragma once

#include <string>

#include "millrace/core/checkpoint.h"
#include "millrace/train/prepare.h"

namespace millrace {

// Same model, batch, seed, training samples, optimizer, and the same tensors of the same shapes and
// dtypes; stages, replicas, schedule, rule, microbatches, learning rate and epochs may differ.
// Throws Error naming `path`: kInvalidArgument with every difference, kBadFile for a position in
// the data that cannot be.
void check_resume(const CheckpointManifest& checkpoint, const Job& job, const std::string& path);

}  // namespace millrace
