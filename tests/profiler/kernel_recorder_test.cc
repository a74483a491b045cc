#include "millrace/profiler/internal/kernel_recorder.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace millrace::internal {
namespace {

// A clock that goes on by one second at each reading, so that sums are exact.
std::function<double()> counting_clock() {
  return [now = 0.0]() mutable { return now += 1; };
}

const RecordedRow* find_row(const std::vector<RecordedRow>& rows, const std::string& name) {
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [&](const RecordedRow& one) { return one.row.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

double sum_of(const std::vector<RecordedRow>& rows) {
  double sum = 0;
  for (const RecordedRow& one : rows) {
    sum += one.row.self_s;
  }
  return sum;
}

TEST(KernelRecorder, RowsSumToTheStepsToTheLastReadingOfTheClock) {
  KernelRecorder recorder(counting_clock());
  const at::Tensor x = at::ones({3, 4});
  for (int step = 0; step < 4; ++step) {
    recorder.begin_step();
    {
      const KernelMark mark(KernelRowKind::kLayer, "outer", "a");
      const at::Tensor y = x.t().contiguous();
      const KernelMark inner(KernelRowKind::kLoss, "inner", "");
      at::mm(x, y).exp();
    }
    recorder.end_step();
  }
  EXPECT_EQ(recorder.steps(), 4);
  EXPECT_EQ(sum_of(recorder.rows()) * 4, recorder.recorded_s());
}

TEST(KernelRecorder, TimeBelongsToTheInnermost) {
  double now = 0;
  KernelRecorder recorder([&] { return now; });  // recording takes no time
  recorder.begin_step();
  {
    const KernelMark outer(KernelRowKind::kLayer, "outer", "a");
    now += 1;
    {
      const KernelMark inner(KernelRowKind::kLayer, "inner", "b");
      now += 10;
    }
    now += 100;
  }
  now += 1000;
  recorder.end_step();
  const std::vector<RecordedRow> rows = recorder.rows();
  EXPECT_EQ(find_row(rows, "outer")->row.self_s, 101);
  EXPECT_EQ(find_row(rows, "outer")->row.total_s, 111);
  EXPECT_EQ(find_row(rows, "inner")->row.self_s, 10);
  EXPECT_EQ(find_row(rows, "between layers")->row.self_s, 1000);
  EXPECT_EQ(find_row(rows, "recording")->row.self_s, 0);
  EXPECT_EQ(recorder.recorded_s(), 1111);
}

TEST(KernelRecorder, GroupsByShapeStridesAndTypeAndNamesTheLayers) {
  KernelRecorder recorder;
  const at::Tensor x = at::ones({3, 4});
  recorder.begin_step();
  {
    const KernelMark mark(KernelRowKind::kLayer, "k", "first");
    at::exp(x);
    at::exp(x);
  }
  {
    const KernelMark mark(KernelRowKind::kLayer, "k", "second");
    at::exp(x);
    at::exp(x.t());
    at::exp(at::ones({4, 3}));
    at::exp(x.to(at::kDouble));
  }
  recorder.end_step();
  std::vector<std::string> seen;
  for (const RecordedRow& one : recorder.rows()) {
    if (one.row.name == "aten::exp") {
      seen.push_back(one.row.shapes + " " + one.row.dtype + " " +
                     std::to_string(static_cast<int>(one.row.calls)) + " " +
                     std::to_string(one.row.layers.size()));
    }
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, (std::vector<std::string>{"[3, 4] float32 3 2", "[3, 4] float64 1 1",
                                            "[4, 3] float32 1 1", "[4, 3]s float32 1 1"}));
}

TEST(KernelRecorder, CountsWhatAProductAndAConvolutionTake) {
  KernelRecorder recorder;
  const at::Tensor images = at::ones({2, 3, 8, 8});
  const at::Tensor filters = at::ones({5, 3, 3, 3});
  recorder.begin_step();
  at::mm(at::ones({6, 7}), at::ones({7, 8}));
  at::convolution(images, filters, {}, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1);
  recorder.end_step();
  double convolved = 0;
  for (const RecordedRow& one : recorder.rows()) {
    if (one.row.name == "aten::mm") {
      EXPECT_EQ(one.row.flops, 2.0 * 6 * 7 * 8);
      EXPECT_EQ(one.row.bytes, 4.0 * (6 * 7 + 7 * 8 + 6 * 8));
    } else if (one.row.name.find("conv") != std::string::npos) {
      convolved += one.row.flops;
    }
  }
  // Of the nested operators, the one that does the work.
  EXPECT_EQ(convolved, 2.0 * (2 * 5 * 6 * 6) * (3 * 3 * 3));
}

TEST(KernelRecorder, TellsTheGradientsOfAConvolutionApart) {
  KernelRecorder recorder;
  const at::Tensor images = at::ones({2, 3, 8, 8});
  const at::Tensor filters = at::ones({5, 3, 3, 3});
  const at::Tensor grad = at::ones({2, 5, 6, 6});
  recorder.begin_step();
  for (const bool input : {true, false}) {
    at::convolution_backward(grad, images, filters, at::OptionalIntArrayRef(), {1, 1}, {0, 0},
                             {1, 1}, false, {0, 0}, 1, {input, !input, false});
  }
  recorder.end_step();
  std::vector<std::string> seen;
  for (const RecordedRow& one : recorder.rows()) {
    if (one.row.name == "aten::convolution_backward") {
      seen.push_back(one.row.shapes);
      EXPECT_EQ(one.row.flops, 2.0 * (2 * 5 * 6 * 6) * (3 * 3 * 3));
    }
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, (std::vector<std::string>{"[2, 5, 6, 6] [2, 3, 8, 8] [5, 3, 3, 3] input",
                                            "[2, 5, 6, 6] [2, 3, 8, 8] [5, 3, 3, 3] weight"}));
}

TEST(KernelRecorder, ChainsAreWhatOnePassCouldDo) {
  KernelRecorder recorder;
  const at::Tensor x = at::ones({30});
  const at::Tensor matrix = at::ones({30, 30});
  recorder.begin_step();
  const at::Tensor a = at::mul(at::exp(x), x).tanh_();
  const at::Tensor b = at::mv(matrix, a).add(1);  // of what a product made: a chain of one
  const at::Tensor c = at::exp(x);
  const at::Tensor d = at::tanh(x);  // not of what came before
  recorder.end_step();
  const std::vector<PointwiseChain> chains = recorder.chains();
  ASSERT_EQ(chains.size(), 1U);
  EXPECT_EQ(chains[0].calls, 1);
  ASSERT_EQ(chains[0].rows.size(), 3U);
  const std::vector<RecordedRow> rows = recorder.rows();
  const auto name = [&](int i) {
    return rows[static_cast<std::size_t>(chains[0].rows[i])].row.name;
  };
  EXPECT_EQ(name(0), "aten::exp");
  EXPECT_EQ(name(1), "aten::mul");
  EXPECT_EQ(name(2), "aten::tanh_");
  EXPECT_GT(chains[0].total_s, chains[0].longest_s);
}

TEST(KernelRecorder, AKernelOfOurOwnBetweenThemEndsAChain) {
  KernelRecorder recorder;
  const at::Tensor x = at::ones({30});
  recorder.begin_step();
  const at::Tensor a = at::exp(x);
  { const KernelMark pool(KernelRowKind::kLayer, "pool", "pool"); }
  const at::Tensor b = at::tanh(a);
  recorder.end_step();
  EXPECT_TRUE(recorder.chains().empty());
}

TEST(KernelRecorder, OperatorsOfLoadingAreLoading) {
  KernelRecorder recorder;
  recorder.begin_step();
  {
    const KernelMark mark(KernelRowKind::kLoading, "loading", "loading");
    at::exp(at::ones({5}));
  }
  recorder.end_step();
  EXPECT_EQ(find_row(recorder.rows(), "aten::exp"), nullptr);
  EXPECT_EQ(find_row(recorder.rows(), "loading")->row.calls, 1);
}

TEST(KernelRecorder, HooksLiveAsLongAsAStep) {
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  try {
    KernelRecorder recorder;
    EXPECT_FALSE(at::hasThreadLocalCallbacks());
    recorder.begin_step();
    EXPECT_TRUE(at::hasThreadLocalCallbacks());
    recorder.end_step();
    EXPECT_FALSE(at::hasThreadLocalCallbacks());
    recorder.begin_step();
    at::mm(at::ones({2, 3}), at::ones({2, 3}));  // throws
    FAIL();
  } catch (const std::exception&) {
  }
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  EXPECT_EQ(KernelRecorder::of_this_thread(), nullptr);
}

}  // namespace
}  // namespace millrace::internal
