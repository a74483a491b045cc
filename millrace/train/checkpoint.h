// Checkpoints on disk: a folder with manifest.json and tensors.safetensors, written aside and
// renamed, so that a kill or a full disk never leaves half of one. No topology: tensors are keyed
// by layer and parameter.
#pragma once

#include <string>
#include <vector>

#include "millrace/core/checkpoint.h"
#include "millrace/train/session.h"

namespace millrace {

// Writes `dir`/step-NNNNNNNN and then points `dir`/latest at it. Returns the checkpoint's path.
// `manifest.tensors` is filled in here. Throws kNoSpace or kBadFile; the previous checkpoint stays
// intact.
std::string save_checkpoint(const std::string& dir, CheckpointManifest manifest,
                            const std::vector<NamedTensor>& tensors);

// The checkpoint folder that a path means: a checkpoint itself, a `checkpoints` folder, or a run
// folder (its latest). Throws kBadFile naming what is missing.
std::string resolve_checkpoint(const std::string& path);

// Reads the manifest and every tensor, verifying names, shapes, sizes and checksums.
struct LoadedCheckpoint {
  CheckpointManifest manifest;
  std::vector<NamedTensor> tensors;
};
LoadedCheckpoint read_checkpoint(const std::string& path);

// Loads into a session: every tensor the session has must be there and the reverse; all differences
// are listed in one error.
void load_into(const LoadedCheckpoint& checkpoint, Session& session);

}  // namespace millrace
