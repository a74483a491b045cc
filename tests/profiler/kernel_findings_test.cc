#include "millrace/profiler/internal/kernel_findings.h"

#include <gtest/gtest.h>

#include <utility>

namespace millrace::internal {
namespace {

// A profile of a second's step on two of two cores.
KernelProfile second() {
  KernelProfile profile;
  profile.step_s = 1;
  profile.cores = 2;
  profile.busy_ranks = 2;
  return profile;
}

TensorShape shape(std::vector<int64_t> sizes, std::vector<int64_t> strides,
                  at::ScalarType dtype = at::kFloat) {
  return {true, true, std::move(sizes), std::move(strides), dtype};
}

OperatorCall& add(KernelProfile& profile, std::vector<OperatorCall>& calls, OperatorCall call,
                  double self_s) {
  KernelRow row;
  row.name = call.name;
  row.shapes = shapes_text(call);
  row.dtype = "float32";
  row.calls = 1;
  row.self_s = self_s;
  row.total_s = self_s;
  row.flops = flops_of(call);
  profile.rows.push_back(std::move(row));
  calls.push_back(std::move(call));
  return calls.back();
}

TEST(KernelFindings, AProfileThatIsAsItShouldBeHasNone) {
  KernelProfile profile = second();
  std::vector<OperatorCall> calls;
  add(profile, calls, {"aten::mm", "", {shape({9, 9}, {9, 1}), shape({9, 9}, {1, 9})}, {}}, 1);
  profile.rows[0].alone_s = 0.9;
  EXPECT_TRUE(find_what_to_mend(profile, calls).empty());
}

TEST(KernelFindings, ReordersConversionsAndCopiesAreToldApartAndRanked) {
  KernelProfile profile = second();
  std::vector<OperatorCall> calls;
  const TensorShape plain = shape({9, 9}, {9, 1});
  add(profile, calls, {"aten::copy_", "", {plain, shape({9, 9}, {1, 9})}, {plain}}, 0.1);
  add(profile, calls, {"aten::copy_", "", {plain, shape({9, 9}, {9, 1}, at::kDouble)}, {plain}},
      0.3);
  add(profile, calls, {"aten::cat", "", {std::vector<TensorShape>{plain, plain}}, {plain}}, 0.2);
  add(profile, calls, {"aten::clone", "", {plain}, {plain}}, 0.0005);  // below a thousandth
  const std::vector<KernelFinding> found = find_what_to_mend(profile, calls);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_NE(found[0].what.find("converts"), std::string::npos) << found[0].what;
  EXPECT_NE(found[1].what.find("copies"), std::string::npos) << found[1].what;
  EXPECT_NE(found[2].what.find("reorders"), std::string::npos) << found[2].what;
  EXPECT_EQ(found[0].saves_at_most_s, 0.3);
  EXPECT_EQ(found[2].saves_at_most_s, 0.1);
}

TEST(KernelFindings, AConvolutionsOwnReordersAreWhatItTakesLongerThanBlocked) {
  KernelProfile profile = second();
  std::vector<OperatorCall> calls;
  add(profile, calls, {"aten::mkldnn_convolution", "", {shape({1, 8, 4, 4}, {128, 16, 4, 1})}, {}},
      0.5);
  profile.rows[0].calls = 4;
  profile.rows[0].alone_s = 0.125;
  profile.rows[0].blocked_s = 0.1;
  const std::vector<KernelFinding> found = find_what_to_mend(profile, calls);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].kind, KernelFindingKind::kReorder);
  EXPECT_NEAR(found[0].saves_at_most_s, 0.1, 1e-12);
}

TEST(KernelFindings, AChainSavesAllButItsLongestPass) {
  KernelProfile profile = second();
  std::vector<OperatorCall> calls;
  add(profile, calls, {"aten::exp", "", {shape({9}, {1})}, {}}, 0.2);
  add(profile, calls, {"aten::mul", "", {shape({9}, {1})}, {}}, 0.1);
  profile.chains.push_back({{0, 1}, 1, 0.3, 0.2});
  const std::vector<KernelFinding> found = find_what_to_mend(profile, calls);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].kind, KernelFindingKind::kPointwise);
  EXPECT_NEAR(found[0].saves_at_most_s, 0.1, 1e-12);
  EXPECT_NE(found[0].what.find("aten::exp, aten::mul"), std::string::npos) << found[0].what;
}

TEST(KernelFindings, AFallbackIsMeasuredByTheBestRate) {
  KernelProfile profile = second();
  std::vector<OperatorCall> calls;
  const TensorShape plain = shape({9, 9}, {9, 1});
  add(profile, calls, {"aten::mm", "", {plain, plain}, {}}, 0.1);
  add(profile, calls, {"aten::mm", "", {plain, shape({9, 9}, {18, 2})}, {}}, 0.4);
  const std::vector<KernelFinding> found = find_what_to_mend(profile, calls);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].kind, KernelFindingKind::kFallback);
  EXPECT_NEAR(found[0].saves_at_most_s, 0.3, 1e-12);
}

TEST(KernelFindings, SlowerThanAloneCountsFromAQuarterOn) {
  KernelProfile profile = second();
  std::vector<OperatorCall> calls;
  const TensorShape plain = shape({9}, {1});
  add(profile, calls, {"aten::exp", "", {plain}, {}}, 0.24);
  add(profile, calls, {"aten::tanh", "", {plain}, {}}, 0.3);
  profile.rows[0].alone_s = 0.2;
  profile.rows[1].alone_s = 0.2;
  const std::vector<KernelFinding> found = find_what_to_mend(profile, calls);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].kind, KernelFindingKind::kInStep);
  EXPECT_NEAR(found[0].saves_at_most_s, 0.1, 1e-12);
  // What mostly calls others is lengthened by their recording.
  profile.rows[1].self_s = 0.2;
  EXPECT_TRUE(find_what_to_mend(profile, calls).empty());
}

TEST(KernelFindings, CoresAreNeitherIdleNorShared) {
  KernelProfile profile = second();
  profile.cores = 8;
  std::vector<KernelFinding> found = find_what_to_mend(profile, {});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].kind, KernelFindingKind::kThreads);
  EXPECT_NEAR(found[0].saves_at_most_s, 0.75, 1e-12);
  profile.threads = 8;
  found = find_what_to_mend(profile, {});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].what.find("wait for one another"), std::string::npos) << found[0].what;
  EXPECT_NEAR(found[0].saves_at_most_s, 0.5, 1e-12);
}

TEST(KernelFindings, LoadingCountsWhole) {
  KernelProfile profile = second();
  KernelRow row;
  row.kind = KernelRowKind::kLoading;
  row.total_s = 0.25;
  profile.rows.push_back(row);
  const std::vector<KernelFinding> found = find_what_to_mend(profile, {OperatorCall{}});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].kind, KernelFindingKind::kLoading);
  EXPECT_EQ(found[0].saves_at_most_s, 0.25);
}

}  // namespace
}  // namespace millrace::internal
