// Your own model and data in everything that `millrace` does: own_model train own_model.toml
#include "millrace/cli/torch/program.h"
#include "millrace/model/layers.h"
#include "millrace/model/opaque.h"

using namespace millrace;

struct Circle : Dataset {  // points of the plane: outside of a circle or inside?
  explicit Circle(uint64_t seed) : key(seed) {}
  int64_t size() const override { return 1000; }
  TensorSpec input() const override { return {{2}}; }
  TensorSpec target() const override { return {{}, at::kLong}; }
  int64_t num_classes() const override { return 2; }
  Batch get(const int64_t* indices, int64_t count, at::ScalarType dtype) const override {
    const at::Tensor points = at::empty({count, 2}, at::kDouble);
    for (int64_t i = 0; i < 2 * count; ++i) {
      points.data_ptr<double>()[i] = key.normal(2 * indices[i / 2] + i % 2);
    }
    return {points.to(dtype), points.square().sum(1).lt(1.4).to(at::kLong)};
  }
  RandomKey key;
};

Model ring(ModelRequest& request) {
  const int64_t width = request.options.count("width", 1, 32);
  Model model{"ring", request.input, {{}, at::kLong}, {}, {}, cross_entropy()};
  model.append(linear("in", 2, width));
  // No layer of that kind? Any function of tensors is one; opaque("x", module) any libtorch module.
  model.append(opaque_function("bend", [](at::TensorList x) { return at::silu(x[0]); }));
  model.append(linear("out", width, request.num_classes));
  return model;
}

int main(int argc, char** argv) {
  add_model({"ring", "points by their distance", "width=32", ring});
  add_dataset({"circle", "points of the plane", "", [](Reader&, uint64_t seed) -> DataSplits {
                 return {std::make_unique<Circle>(seed), std::make_unique<Circle>(seed + 1)};
               }});
  return run_program(argc, argv);
}
