#include "millrace/model/layer.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "millrace/model/internal/native.h"

namespace millrace {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    elements *= size;
  }
  return elements;
}

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kLong:
      return "int64";
    case at::kInt:
      return "int32";
    case at::kByte:
      return "uint8";
    default:
      return c10::toString(dtype);
  }
}

at::ScalarType float_dtype(const std::string& name) {
  if (name == "float32") {
    return at::kFloat;
  }
  if (name == "float64") {
    return at::kDouble;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("dtype: expected float32 or float64, found \"{}\"", name));
}

int64_t TensorSpec::sample_elements() const { return product(sample_shape); }

int64_t TensorSpec::sample_bytes() const {
  return sample_elements() * static_cast<int64_t>(c10::elementSize(dtype));
}

std::string to_string(const TensorSpec& spec) {
  return dtype_name(spec.dtype) + " " + internal::shape_text(spec.sample_shape);
}

RowRange rows_of_part(int64_t count, int part, int parts) {
  return {count * part / parts, count * (part + 1) / parts};
}

int64_t ParameterSpec::elements() const { return product(shape); }

}  // namespace millrace
