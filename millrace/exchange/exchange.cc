#include "millrace/exchange/exchange.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {
namespace {

PortPlace place_of(const ExchangeSetup& setup, int rank) {
  const auto own = std::find(setup.replicas.begin(), setup.replicas.end(), rank);
  MILLRACE_CHECK(own != setup.replicas.end(), "the rank is no replica of the stage");
  PortPlace place{.stage = setup.stage,
                  .member = static_cast<int>(own - setup.replicas.begin()),
                  .replicas = setup.replicas,
                  .nodes = setup.nodes,
                  .dtype = setup.dtype,
                  .elements = setup.elements};
  if (place.nodes.empty()) {
    place.nodes.assign(setup.replicas.size(), 0);
  }
  return place;
}

std::unique_ptr<Rule> make_rule(const ExchangeSetup& setup, int rank) {
  const RuleEntry& entry = find_rule(setup.rule);
  RuleConfig config;
  config.num_members = static_cast<int>(setup.replicas.size());
  config.member = place_of(setup, rank).member;
  config.options = settle_rule(entry, setup.rule_options);
  config.seed = setup.seed;
  return entry.make(config);
}

}  // namespace

Exchange::Exchange(const ExchangeSetup& setup, Communicator& communicator)
    : Exchange(setup, find_rule(setup.rule).traits, make_rule(setup, communicator.rank()),
               communicator) {}

Exchange::Exchange(const ExchangeSetup& setup, const RuleTraits& traits, std::unique_ptr<Rule> rule,
                   Communicator& communicator)
    : traits_(traits),
      rule_(std::move(rule)),
      communicator_(communicator),
      place_(place_of(setup, communicator.rank())),
      port_(place_, communicator) {
  MILLRACE_CHECK(rule_ != nullptr);
  port_.bind(setup.work);
  if (traits_.serves && place_.member == 0) {
    server_communicator_ = communicator.on_lane(rule_lane(place_.stage, RuleLane::kServer));
    PortPlace place = place_;
    place.member = Port::kServer;
    server_port_ = std::make_unique<TensorPort>(std::move(place), *server_communicator_);
    server_port_->bind(setup.work);
  }
}

Exchange::~Exchange() {
  // After a failure; the communicator's abort ends the server's waits.
  if (server_.joinable()) {
    server_.join();
  }
}

void Exchange::bind(const StageTensors& tensors) {
  port_.bind(tensors.gradient, tensors.current, tensors.target);
  port_.bind(tensors.loss);
}

// Tasks never stop half-way: the port blocks.
void Exchange::run(Task task, Transfer& transfer) {
  task.start();
  MILLRACE_CHECK(task.done(), "a rule's task waits for what no port of tensors gives");
  port_.finish_work();
  const Transfer moved = port_.take_transfer();
  transfer.wait_s += moved.wait_s;
  transfer.bytes += moved.bytes;
}

void Exchange::begin(const at::Tensor& weights) {
  reduced_ = announced_ = false;
  if (server_port_ != nullptr) {
    start_server(weights);
  }
  port_.bind({}, weights, weights);
  Transfer transfer;
  run(rule_->begin(port_), transfer);
}

void Exchange::start_server(const at::Tensor& weights) {
  // A copy: the worker writes its own while the server starts.
  const at::Tensor initial = weights.clone();
  server_port_->bind({}, initial, initial);
  server_failure_ = nullptr;
  server_ = std::thread([this] {
    at::set_num_threads(1);  // as the worker's
    try {
      Task task = rule_->serve(*server_port_);
      task.start();
      MILLRACE_CHECK(task.done(), "a server waits for what no port of tensors gives");
      server_port_->finish_work();
    } catch (const Error& error) {
      server_failure_ = std::current_exception();
      communicator_.abort(error);
    } catch (const std::exception& error) {
      server_failure_ = std::current_exception();
      communicator_.abort(Error(ErrorCode::kInternal, error.what()));
    }
  });
}

void Exchange::stop_server() {
  if (!server_.joinable()) {
    return;
  }
  server_.join();
  server_port_->bind({}, {}, {});
  if (server_failure_) {
    std::rethrow_exception(server_failure_);
  }
}

void Exchange::ready(const Update& update, const StageTensors& tensors, Range range,
                     Transfer& transfer) {
  bind(tensors);
  port_.bind(update);
  announced_ = true;
  run(rule_->gradients_ready(port_, range, false), transfer);
}

void Exchange::reduce(const Update& update, const StageTensors& tensors, Transfer& transfer) {
  MILLRACE_CHECK(!reduced_, "REDUCE again before STEP");
  bind(tensors);
  port_.bind(update);
  reduced_ = true;
  const Range rest{0, announced_ ? 0 : tensors.gradient.numel()};
  announced_ = false;
  run(rule_->gradients_ready(port_, rest, true), transfer);
}

void Exchange::step(const Update& update, const StageTensors& tensors,
                    const OptimizerStep& optimizer, Transfer& transfer) {
  MILLRACE_CHECK(reduced_, "STEP without REDUCE");
  reduced_ = false;
  bind(tensors);
  port_.bind(update);
  port_.bind(optimizer);
  run(rule_->step(port_), transfer);
  port_.bind(OptimizerStep());
}

void Exchange::finish(const StageTensors& tensors, const OptimizerStep& optimizer,
                      Transfer& transfer) {
  bind(tensors);
  port_.bind(optimizer);
  run(rule_->finish(port_), transfer);
  port_.bind(OptimizerStep());
  stop_server();
}

at::Tensor Exchange::settle(const at::Tensor& weights) {
  if (traits_.equal_replicas) {
    return {};
  }
  at::Tensor result = weights.clone();
  port_.bind({}, weights, weights);
  Transfer transfer;
  run(rule_->settle(port_, port_.wrap(result)), transfer);
  return result;
}

}  // namespace millrace
