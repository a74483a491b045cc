// Checkpoints on disk: a folder with manifest.json and tensors.safetensors, written aside and
// renamed, so that a kill or a full disk never leaves half of one. No topology: tensors are keyed
// by layer and parameter.
#pragma once

#include <string>
#include <vector>

#include "millrace/core/checkpoint.h"
#include "millrace/train/session.h"

namespace millrace {

// Writes `dir`/step-NNNNNNNN aside, flushes it, renames it, and only then points `dir`/latest at
// it. Returns the checkpoint's path. Afterwards `dir` holds the `keep` checkpoints that were
// written last (0: all), this one among them, and nothing of saves that were killed.
// `manifest.tensors` is filled in here. Throws kNoSpace or kBadFile; the previous checkpoint stays
// intact. One process at a time may save into a folder.
std::string save_checkpoint(const std::string& dir, CheckpointManifest manifest,
                            const std::vector<NamedTensor>& tensors, int64_t keep = 0);

// The checkpoint folder that a path means: a checkpoint itself, a `checkpoints` folder, or a run
// folder (its latest). Throws kBadFile naming what is missing.
std::string resolve_checkpoint(const std::string& path);

// Reads the manifest and every tensor, verifying names, shapes, sizes and checksums.
struct LoadedCheckpoint {
  CheckpointManifest manifest;
  std::vector<NamedTensor> tensors;
};
LoadedCheckpoint read_checkpoint(const std::string& path);

// Loads into a session of any stages and replicas: every tensor the session has must be there and
// the reverse, in the same shape and dtype. All differences are listed in one error, and then
// nothing was loaded.
void load_into(const LoadedCheckpoint& checkpoint, Session& session);

}  // namespace millrace
