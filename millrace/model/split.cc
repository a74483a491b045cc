#include "millrace/model/split.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

namespace millrace {

std::set<std::string> split_layers(const Model& model, int parts) {
  std::set<std::string> names;
  for (const LayerPtr& layer : model.layers) {
    if (parts > 1 && layer->split(0, parts) != nullptr) {
      names.insert(layer->name());
    }
  }
  // One place for the weight of both: it stays whole.
  for (const LayerPtr& layer : model.layers) {
    for (const BorrowedParameter& borrowed : layer->borrowed()) {
      names.erase(layer->name());
      names.erase(borrowed.layer);
    }
  }
  return names;
}

at::Tensor rows_of(const at::Tensor& whole, const std::vector<RowRange>& rows) {
  if (rows.empty()) {
    return whole;
  }
  std::vector<at::Tensor> pieces;
  for (const RowRange& range : rows) {
    if (whole.dim() == 0 || range.end > whole.size(0)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("a part has rows {} to {} of a parameter of {}", range.begin,
                              range.end, whole.dim() == 0 ? 0 : whole.size(0)));
    }
    pieces.push_back(whole.narrow(0, range.begin, range.end - range.begin));
  }
  return at::cat(pieces, 0);
}

at::Tensor joined(const std::vector<PartialTensor>& parts) {
  int64_t rows = 0;
  int64_t end = 0;
  for (const PartialTensor& part : parts) {
    rows += part.tensor.size(0);
    for (const RowRange& range : part.rows) {
      end = std::max(end, range.end);
    }
  }
  MILLRACE_CHECK(rows == end, "parts do not make a whole");
  std::vector<int64_t> sizes = parts.front().tensor.sizes().vec();
  sizes.front() = end;
  at::Tensor whole = at::empty(sizes, parts.front().tensor.options());
  for (const PartialTensor& part : parts) {
    int64_t next = 0;
    for (const RowRange& range : part.rows) {
      const int64_t count = range.end - range.begin;
      whole.narrow(0, range.begin, count).copy_(part.tensor.narrow(0, next, count));
      next += count;
    }
  }
  return whole;
}

}  // namespace millrace
