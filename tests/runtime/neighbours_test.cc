#include "millrace/runtime/neighbours.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "millrace/comm/inproc/inproc.h"
#include "millrace/model/layers.h"
#include "millrace/runtime/team.h"

namespace millrace {
namespace {

// a feeds t and the sum; the stages are {a}, {t}, {sum, b}.
Model residual() {
  Model model;
  model.name = "residual";
  model.input = {{4}, at::kDouble};
  model.target = {{4}, at::kDouble};
  model.loss = half_squared_error();
  const int a = model.append(linear("a", 4, 4));
  const int t = model.append(tanh("t"));
  model.append(add("sum"), {t, a});
  model.append(linear("b", 4, 4));
  return model;
}

const std::vector<int> kStageOfLayer = {0, 1, 2, 2};

TEST(StageBorders, BothEndsNameTheSameTensors) {
  const Model model = residual();
  const Stage first(model, 0, 1);
  const Stage middle(model, 1, 2);
  const Stage last(model, 2, 4);
  const StageBorders of_first(model, first, kStageOfLayer);
  const StageBorders of_middle(model, middle, kStageOfLayer);
  const StageBorders of_last(model, last, kStageOfLayer);
  EXPECT_EQ(of_first.num_sources(), 0) << "the data are no stage";
  EXPECT_EQ(of_first.to(1), std::vector<int>{0});
  EXPECT_EQ(of_first.to(2), std::vector<int>{0});
  EXPECT_EQ(of_first.last_user(0), 2);
  EXPECT_EQ(of_middle.from(0), std::vector<int>{0});
  EXPECT_EQ(of_middle.to(2), std::vector<int>{0});
  EXPECT_EQ(of_middle.num_sources(), 1);
  EXPECT_EQ(of_last.num_sources(), 2);
  ASSERT_EQ(of_last.from(0).size(), 1U);
  ASSERT_EQ(of_last.from(1).size(), 1U);
  EXPECT_EQ(last.inputs()[static_cast<std::size_t>(of_last.from(0)[0])].producer, 0);
  EXPECT_EQ(last.inputs()[static_cast<std::size_t>(of_last.from(1)[0])].producer, 1);
  EXPECT_TRUE(of_last.to(0).empty());
}

// What stage 0 makes goes to two stages: the first send must leave it for the second.
TEST(Neighbours, ATensorStaysUntilItsLastUserHasIt) {
  const Model model = residual();
  InprocWorld world(3, 10);
  run_ranks(
      {0, 1, 2}, [&](const Error& cause) { world.abort(cause); },
      [&](int rank) {
        const auto comm = world.communicator(rank);
        const Stage stage(model, rank == 2 ? 2 : rank, rank == 2 ? 4 : rank + 1);
        const StageBorders borders(model, stage, kStageOfLayer);
        Neighbours neighbours(stage, borders, *comm, nullptr);
        if (rank == 0) {
          Tensors outputs = {at::ones({2, 4}, at::kDouble)};
          neighbours.send(parse_action("0SEND_F0>1"), outputs);
          EXPECT_TRUE(outputs[0].defined());
          neighbours.send(parse_action("0SEND_F0>2:2"), outputs);
          EXPECT_FALSE(outputs[0].defined());
          std::vector<BorderGradient> gradients;
          neighbours.receive_gradients(parse_action("0RECV_B0<2:2"), 2, gradients);
          ASSERT_EQ(gradients.size(), 1U);
          EXPECT_EQ(gradients[0].border, 0);
        } else {
          Tensors inputs(stage.inputs().size());
          const Action receive = parse_action(rank == 1 ? "1RECV_F0<0" : "2RECV_F0<0:0");
          neighbours.receive_inputs(receive, 2, inputs);
          const auto at = static_cast<std::size_t>(borders.from(0)[0]);
          EXPECT_EQ(inputs[at].sum().item<double>(), 8);
          if (rank == 2) {
            Tensors back(stage.inputs().size());
            back[at] = at::zeros({2, 4}, at::kDouble);
            neighbours.send(parse_action("2SEND_B0>0:0"), back);
          }
        }
      });
}

}  // namespace
}  // namespace millrace
