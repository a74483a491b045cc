// Checkpoint: the manifest of a saved training state. No topology in it: tensors are keyed by layer
// name.
//
// On disk: a directory with manifest.json (this value) and tensors.safetensors (the payload).
// Reading and writing of tensors is `train`'s; this header is torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/document.h"

namespace millrace {

struct TensorEntry {
  std::string name;  // "conv1.weight"; optimizer state: "conv1.weight/velocity"
  std::string layer;
  std::string dtype;  // "float32", "float64"
  std::vector<int64_t> shape;
  uint32_t crc32 = 0;  // of the tensor's bytes
  bool operator==(const TensorEntry&) const = default;
};

struct CheckpointManifest {
  std::string model;
  int64_t step = 0;   // updates done since the beginning
  int64_t epoch = 0;  // where the next sample comes from
  int64_t step_in_epoch = 0;
  int64_t batch = 0;
  int64_t samples = 0;  // size of the dataset it was trained on
  uint64_t seed = 0;    // all random draws are counter-based, so seed and step are the RNG state
  std::string optimizer;
  std::vector<TensorEntry> tensors;
  bool operator==(const CheckpointManifest&) const = default;
};

CheckpointManifest manifest_from(const Document& document);
Value to_value(const CheckpointManifest& manifest);

}  // namespace millrace
