// Dataset: samples by index. The order they are used in is data/order.h's business, whatever the
// number of workers.
//
// Thread rule: const methods may run in several threads at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/document.h"
#include "millrace/model/layer.h"

namespace millrace {

struct Batch {
  at::Tensor input;   // [B, sample_shape...] in the asked dtype; of int64 data, as it is
  at::Tensor target;  // int64 [B], or [B, T] where every position of a sequence has a class
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual TensorSpec input() const = 0;  // dtype float32, or int64 such as tokens
  virtual TensorSpec target() const = 0;
  virtual int64_t num_classes() const = 0;  // of targets; of tokens too, where the input is such
  // Samples at indices[0..count), converted to `dtype`.
  virtual Batch get(const int64_t* indices, int64_t count, at::ScalarType dtype) const = 0;
  // The samples as an epoch of training sees them, where they are changed at random: keyed by these
  // and the sample's index, so that they are the same for every layout. Null: as they are. It must
  // not outlive this.
  virtual std::unique_ptr<Dataset> in_epoch(uint64_t /*seed*/, int64_t /*epoch*/) const {
    return nullptr;
  }
};

struct DataSplits {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> test;
};

struct DataEntry {
  std::string name;
  std::string text;
  std::string options;  // "key=default ..." as in model/builtin.def
  DataSplits (*make)(Reader& options, uint64_t seed);
};
// The builtins, then what the program added.
const std::vector<DataEntry>& datasets();
// For a program with data of its own (cli/torch/program.h), before anything else runs: not
// thread-safe. Throws Error(kInvalidArgument) when the name is taken.
void add_dataset(DataEntry entry);
const DataEntry& find_dataset(const std::string& name);

}  // namespace millrace
