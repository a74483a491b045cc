#include "millrace/cli/torch/membership.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <vector>

#include "millrace/base/text.h"
#include "millrace/cli/common/mpirun.h"
#include "millrace/comm/engines.h"

namespace millrace::cli {
namespace {

// Others may still write a checkpoint, or wait for the disk.
constexpr double kLeaveS = 60;

// The first line in which two configurations differ, of each.
std::string first_difference(const std::string& own, const std::string& other) {
  const std::vector<std::string> a = split(own, '\n');
  const std::vector<std::string> b = split(other, '\n');
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string mine = i < a.size() ? a[i] : "";
    const std::string theirs = i < b.size() ? b[i] : "";
    if (mine != theirs) {
      return fmt::format("`{}` in process 0, `{}` here", theirs, mine);
    }
  }
  return "";
}

}  // namespace

Membership::Membership(const WorldPlace& place) : place_(place) {
  board_ = open_board(place, [](const char* name) { return std::getenv(name); });
  if (board_) {
    board_->set_pid(place.process, ::getpid());
  }
}

Membership::~Membership() = default;

void Membership::join(int num_ranks, double timeout_s, const std::string& config) {
  if (place_.num_processes <= 1) {
    return;
  }
  at(JobPhase::kJoining);
  const std::vector<int> ranks = ranks_of_process(num_ranks, place_.num_processes, place_.process);
  if (board_) {
    board_->set_ranks(place_.process, ranks.front(), ranks.back());
  }
  PortExchange ports;
  if (board_) {
    ports.publish_port = [this](int port) { board_->set_port(port); };
    ports.find_port = [this] { return board_->port(); };
  }
  JoinedOptions options;
  options.num_ranks = num_ranks;
  options.timeout_s = timeout_s;
  world_ = join_world(place_, ports, std::move(options));
  const std::vector<std::string> configs = world_->exchange(config, timeout_s);
  if (configs.front() != config) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("process {} was given another configuration than process 0: {}; start "
                            "all with the same file and options",
                            place_.process, first_difference(config, configs.front())));
  }
}

void Membership::at(JobPhase phase) {
  if (board_) {
    board_->set_phase(place_.process, phase);
  }
}

void Membership::at_step(int64_t step) {
  if (board_) {
    board_->set_step(place_.process, step);
  }
}

void Membership::planned(const Plan& plan, const ChooseCollective& choose,
                         const std::shared_ptr<const Codec>& codec) {
  if (world_ == nullptr) {
    return;
  }
  world_->reduce_by(choose, codec);
  std::set<int> stages;
  for (const int rank : world_->local_ranks()) {
    const std::vector<int> held = plan.stages_of_rank(rank);
    stages.insert(held.begin(), held.end());
  }
  std::vector<std::string> names;
  for (const int stage : stages) {
    names.push_back(std::to_string(stage));
  }
  if (board_) {
    board_->set_stages(place_.process,
                       names.empty()
                           ? "no stage"
                           : fmt::format("{} {} of {}", names.size() == 1 ? "stage" : "stages",
                                         millrace::join(names, ", "), plan.num_stages()));
  }
}

void Membership::leave() {
  if (world_ != nullptr) {
    world_->close(kLeaveS);
  }
  at(JobPhase::kDone);
}

void Membership::interrupt(const Error& error) {
  if (world_ != nullptr) {
    world_->abort(error);
    world_->close(0);
  }
  at(JobPhase::kDone);
}

bool Membership::fail(const Error& error) {
  if (board_) {
    board_->set_failure(place_.process, error);
  }
  if (world_ != nullptr) {
    world_->abort(error);
    world_->close(0);
  }
  return board_.has_value();
}

}  // namespace millrace::cli
