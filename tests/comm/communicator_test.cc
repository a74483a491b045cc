#include "millrace/comm/communicator.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace millrace {
namespace {

at::Tensor empty_of(const std::vector<int64_t>& sizes, at::ScalarType dtype = at::kFloat) {
  return at::empty(sizes, at::TensorOptions().dtype(dtype));
}

// The names in `transport` are numbered by hand; here they meet libtorch's own numbering.
TEST(Fingerprint, NamesAgreeWithLibtorch) {
  const std::map<at::ScalarType, std::string> names = {
      {at::kByte, "uint8"},
      {at::kChar, "int8"},
      {at::kShort, "int16"},
      {at::kInt, "int32"},
      {at::kLong, "int64"},
      {at::kHalf, "float16"},
      {at::kFloat, "float32"},
      {at::kDouble, "float64"},
      {at::kComplexFloat, "complex64"},
      {at::kComplexDouble, "complex128"},
      {at::kBool, "bool"},
      {at::kBFloat16, "bfloat16"},
  };
  for (const auto& [dtype, name] : names) {
    EXPECT_EQ(to_string(fingerprint_of(empty_of({2, 3}, dtype))), name + " [2, 3]");
  }
}

TEST(Fingerprint, ShowsSizesOfAnyNumberOfDimensions) {
  EXPECT_EQ(to_string(fingerprint_of(at::Tensor())), "no tensor");
  EXPECT_EQ(to_string(fingerprint_of(empty_of({}))), "float32 []");
  EXPECT_EQ(to_string(fingerprint_of(empty_of({0}))), "float32 [0]");
  EXPECT_EQ(to_string(fingerprint_of(empty_of({1, 2, 1, 3, 1, 4}))), "float32 [1, 2, 1, 3, 1, 4]");
  EXPECT_EQ(to_string(fingerprint_of(empty_of({1, 2, 1, 3, 1, 4, 5}))),
            "float32 [1, 2, 1, 3, 1, 20 in 2 dimensions]");
}

TEST(Fingerprint, DiffersWithDtypeSizesAndDimensions) {
  const std::vector<at::Tensor> unlike = {
      at::Tensor(),
      empty_of({}),
      empty_of({0}),
      empty_of({4}),
      empty_of({1, 4}),
      empty_of({4, 1}),
      empty_of({4}, at::kDouble),
      empty_of({1, 1, 1, 1, 1, 2, 3}),
      empty_of({1, 1, 1, 1, 1, 6}),
  };
  for (std::size_t i = 0; i < unlike.size(); ++i) {
    for (std::size_t j = 0; j < unlike.size(); ++j) {
      EXPECT_EQ(fingerprint_of(unlike[i]) == fingerprint_of(unlike[j]), i == j) << i << " " << j;
    }
  }
}

}  // namespace
}  // namespace millrace
