// What a split model's parameters are as a whole: checkpoints and comparisons know no parts. Pure
// functions; thread-safe.
//
// Layers are split by their outputs: a part has some rows of the weights, gathers everybody's
// outputs forward and sums everybody's input gradients backward, so that only activations travel,
// never weights. The setting is that of Shrivastava et al., "A Data and Model-Parallel, Distributed
// and Scalable Framework for Training of Deep Networks in Apache Spark", 2017. The text of its
// algorithm was not to be had: what is here is our reconstruction.
#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <string>
#include <vector>

#include "millrace/model/model.h"

namespace millrace {

// Names of the layers that a stage of several parts has a part of; see Stage.
std::set<std::string> split_layers(const Model& model, int parts);

// The rows of a whole parameter that a part has, in their order: a copy; without rows the whole.
// Throws Error(kInvalidArgument) where the parameter has fewer.
at::Tensor rows_of(const at::Tensor& whole, const std::vector<RowRange>& rows);

// A part of a parameter, or of what is kept for one.
struct PartialTensor {
  at::Tensor tensor;
  std::vector<RowRange> rows;
};
// The whole that all parts make, each row from the part that has it. Throws kInternal where the
// parts do not make one.
at::Tensor joined(const std::vector<PartialTensor>& parts);

}  // namespace millrace
