// SizesPort: a Port of sizes without data, as where only time is simulated, that notes what a rule
// sends and reduces. Everything waited for is there at once; messages to take are given beforehand.
#pragma once

#include <fmt/format.h>

#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "millrace/rule/port.h"

namespace millrace {

class SizesPort final : public Port {
 public:
  SizesPort(int member, int num_members, int64_t num_elements, bool is_double = false)
      : member_(member),
        num_members_(num_members),
        gradient_{nullptr, num_elements, is_double},
        weights_{nullptr, num_elements, is_double} {}

  // Taken in this order, whoever is asked for.
  struct Given {
    int64_t size = 0;
    Numbers numbers{};
  };
  std::deque<Given> given;
  std::vector<std::string> notes;  // "send 12 to server", "reduce [0, 8)", "apply"
  int64_t charged = 0;

  int member() const override { return member_; }
  int num_members() const override { return num_members_; }
  int node_of(int /*member*/) const override { return 0; }
  int64_t num_elements() const override { return weights_.size; }
  const Update& update() const override { return update_; }
  double loss() const override { return std::numeric_limits<double>::quiet_NaN(); }
  Vector& gradient() override { return gradient_; }
  Vector& current() override { return weights_; }
  Vector& weights() override { return weights_; }
  Vector& make_vector(int64_t size) override {
    return vectors_.emplace_back(Vector{nullptr, size, weights_.is_double});
  }
  void apply(Vector& /*gradient*/, double /*samples*/) override { notes.emplace_back("apply"); }
  void apply_to(Vector& /*delta*/, Vector& /*gradient*/, double /*samples*/) override {
    notes.emplace_back("apply");
  }
  using Port::send;
  void send(int to, int /*kind*/, const Vector* vector, const Numbers& /*numbers*/) override {
    notes.push_back(fmt::format("send {} to {}", vector == nullptr ? 0 : vector->size,
                                to == kServer ? "server" : std::to_string(to)));
  }
  using Port::give;
  void give(int to, int kind, Vector& vector, const Numbers& numbers) override {
    send(to, kind, &vector, numbers);
  }
  int make_group(const std::vector<int>& /*members*/) override { return 1; }
  using Port::start_all_reduce;
  int64_t start_all_reduce(Vector& /*vector*/, Range range, int /*group*/) override {
    notes.push_back(fmt::format("reduce [{}, {})", range.begin, range.end));
    return 0;
  }
  double now_s() const override { return 0; }
  void charge(int64_t elements) override { charged += elements; }

 protected:
  bool ready() override { return true; }
  Message take() override {
    if (want_.kind == Want::kReduction) {
      start_all_reduce(*want_.vector, want_.range, want_.group);
    }
    if (want_.kind != Want::kFrom) {
      return {};
    }
    const Given next = given.at(0);
    given.pop_front();
    if (want_.vector != nullptr && next.size > 0) {
      want_.vector->size = next.size;
    }
    return {true, want_.from, want_.message_kind, next.numbers};
  }

 private:
  int member_;
  int num_members_;
  Vector gradient_, weights_;
  Update update_{.step = 0, .samples = 8, .own_samples = 4, .lr = 0.1};
  std::deque<Vector> vectors_;
};

}  // namespace millrace
