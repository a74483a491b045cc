#include "millrace/comm/joined/joined.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/comm/joined/program.h"
#include "millrace/comm/joined/state.h"
#include "millrace/core/world_place.h"

namespace millrace {

namespace {

// Larger reductions go piece by piece: what two sides send each other at once then stays within the
// reach of sockets' buffers and caches, beyond which it takes two to three times as long.
constexpr int64_t kPieceBytes = 16 << 20;
constexpr int32_t kMessagesOfPiece = 1 << 16;  // more than a program sends from one to another

}  // namespace

class JoinedWorld::Member final : public Communicator, public Channel {
 public:
  Member(int rank, uint16_t lane, std::shared_ptr<State> state)
      : rank_(rank), lane_(lane), state_(std::move(state)) {
    inner_ = state_->inner.communicator(rank);
    if (lane != 0) {
      inner_ = inner_->on_lane(lane);
    }
  }

  int rank() const override { return rank_; }
  int world_size() const override { return state_->options.num_ranks; }

  Transfer send(int to, const MessageTag& tag, at::Tensor tensor) override {
    if (is_local(to)) {
      return inner_->send(to, tag, std::move(tensor));
    }
    const Transfer transfer{0, tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0};
    state_->send(rank_, to, tag, tensor);
    return transfer;
  }

  void expect(int, const MessageTag&, const Fingerprint&) override {}

  at::Tensor receive(int from, const MessageTag& tag, const Fingerprint* expected,
                     Transfer* transfer) override {
    return inner_->receive(from, tag, expected, transfer);
  }

  bool receive_any(uint16_t lane, double wait_s, Arrived& arrived, Transfer* transfer) override {
    return inner_->receive_any(lane, wait_s, arrived, transfer);
  }

  std::unique_ptr<Communicator> on_lane(uint16_t lane) override {
    return std::make_unique<Member>(rank_, lane, state_);
  }

  std::unique_ptr<Group> group(const std::vector<int>& ranks, int stage) override;
  void abort(const Error& cause) override { state_->abort(cause); }

  void send_part(int to, const MessageTag& tag, const at::Tensor& part) override {
    last_sent_[process_of(to)] = state_->send(rank_, to, tag, part);
  }

  void land(int from, const MessageTag& tag, const at::Tensor& part) override {
    if (part.nbytes() > Frame::kInlineBytes) {
      state_->land(rank_, from, tag, part);
    }
  }

  void receive_part(int from, const MessageTag& tag, at::Tensor& part, double& wait_s) override {
    const Fingerprint expected = fingerprint_of(part);
    Transfer transfer;
    const at::Tensor received = inner_->receive(from, tag, &expected, &transfer);
    wait_s += transfer.wait_s;
    if (received.data_ptr() != part.data_ptr()) {
      std::memcpy(part.data_ptr(), received.data_ptr(), part.nbytes());
    }
    if (part.nbytes() > Frame::kInlineBytes) {
      state_->forget_landing(rank_, from, tag);
    }
  }

  void finish() override {
    for (const auto& [process, number] : last_sent_) {
      if (!state_->wire->wait_sent(process, number, state_->options.timeout_s)) {
        if (state_->inner.abort_flag().raised()) {
          state_->inner.abort_flag().rethrow();
        }
        throw Error(ErrorCode::kTimeout,
                    fmt::format("{} did not take what rank {} sent it within {:g} s",
                                state_->describe(process), rank_, state_->options.timeout_s))
            .at_rank(rank_);
      }
    }
    last_sent_.clear();
  }

  bool is_local(int rank) const {
    return rank >= state_->local_ranks.front() && rank <= state_->local_ranks.back();
  }
  int process_of(int rank) const {
    return process_of_rank(rank, state_->options.num_ranks, state_->wire->num_processes());
  }
  uint16_t lane() const { return lane_; }
  Communicator& inner() { return *inner_; }
  State& state() { return *state_; }

 private:
  const int rank_;
  const uint16_t lane_;  // of its groups
  const std::shared_ptr<State> state_;
  std::unique_ptr<Communicator> inner_;
  std::map<int, uint64_t> last_sent_;  // of a program's parts, by process
};

class JoinedWorld::ReducingGroup final : public Group {
 public:
  // `name` is equal on all members and of no other group.
  ReducingGroup(Member& member, std::vector<int> ranks, int stage, std::string name)
      : own_(member), ranks_(std::move(ranks)), name_(std::move(name)) {
    key_ = static_cast<int32_t>(std::hash<std::string>{}(name_));
    std::map<std::string, int> hosts;
    std::vector<int> local;
    int process = -1;
    for (const int rank : ranks_) {
      if (own_.is_local(rank)) {
        local.push_back(rank);
      }
      if (own_.process_of(rank) == process) {
        continue;
      }
      process = own_.process_of(rank);
      leaders_.push_back(rank);
      processes_.push_back(process);
      const std::string host = own_.state().wire->host_of(process);
      host_of_leader_.push_back(
          hosts.try_emplace(host, static_cast<int>(hosts.size())).first->second);
    }
    leader_ = local.front();
    locals_ = local;
    if (local.size() > 1) {
      local_ = own_.inner().group(local, stage);
    }
    index_ =
        static_cast<int>(std::find(leaders_.begin(), leaders_.end(), leader_) - leaders_.begin());
    const std::lock_guard lock(own_.state().groups_mutex);
    choose_ = own_.state().options.choose;
    if (stage != Communicator::kNoStage) {
      codec_ = own_.state().options.codec;
    }
  }

  const std::vector<int>& ranks() const override { return ranks_; }
  int member() const override {
    return static_cast<int>(std::find(ranks_.begin(), ranks_.end(), own_.rank()) - ranks_.begin());
  }

  Transfer all_reduce_sum(at::Tensor& tensor) override {
    const bool summable =
        tensor.defined() && tensor.is_contiguous() && tensor.device().is_cpu() &&
        (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
    if (!summable) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("an all-reduce sums contiguous float32 or float64 tensors, found {}",
                              to_string(fingerprint_of(tensor))))
          .at_rank(own_.rank());
    }
    const int64_t number = sequence_++;
    Transfer transfer;
    if (local_ != nullptr) {
      transfer = local_->all_reduce_sum(tensor);
    }
    if (own_.rank() == leader_) {
      reduce_between(tensor, number, transfer.wait_s);
    }
    share(tensor, number, transfer.wait_s);
    const auto members = static_cast<int64_t>(ranks_.size());
    transfer.bytes = 2 * (members - 1) * static_cast<int64_t>(tensor.nbytes()) / members;
    return transfer;
  }

  Transfer barrier() override {
    at::Tensor one = at::zeros({1}, at::kDouble);
    Transfer transfer = all_reduce_sum(one);
    transfer.bytes = 0;
    return transfer;
  }

 private:
  void reduce_between(at::Tensor& tensor, int64_t number, double& wait_s) {
    const int64_t elements = tensor.numel();
    const ChosenCollective chosen =
        choose_ ? choose_(leaders_, elements, static_cast<int64_t>(tensor.element_size()))
                : ChosenCollective();
    if (chosen.name == "native") {
      if (native_ == nullptr) {
        native_ = own_.state().wire->native(processes_, name_, own_.state().options.timeout_s);
      }
      native_->all_reduce_sum(tensor, own_.state().options.timeout_s);
      return;
    }
    at::Tensor flat = tensor.view({elements});
    const Codec* codec = tensor.scalar_type() == at::kFloat ? codec_.get() : nullptr;
    const int64_t piece = kPieceBytes / static_cast<int64_t>(tensor.element_size());
    int32_t first_message = 0;
    for (int64_t begin = 0; begin < elements; begin += piece, first_message += kMessagesOfPiece) {
      const int64_t size = std::min(piece, elements - begin);
      at::Tensor part = flat.narrow(0, begin, size);
      const MessageTag tag{kProgramMessage, key_, number, first_message, 0, own_.lane()};
      wait_s += run_program(program(chosen, size), leaders_, tag, part, scratch_, own_, codec);
    }
  }

  // Made once for each size.
  const MemberProgram& program(const ChosenCollective& chosen, int64_t elements) {
    auto& known = programs_[{chosen.name, elements}];
    if (known == nullptr) {
      CollectiveConfig config;
      config.num_members = static_cast<int>(leaders_.size());
      config.elements = elements;
      config.host_of_member = host_of_leader_;
      config.grid = chosen.grid;
      CollectiveProgram all = make_collective(chosen.name, config);
      known =
          std::make_unique<MemberProgram>(std::move(all.members[static_cast<std::size_t>(index_)]));
    }
    return *known;
  }

  // The leader's sum becomes that of the other ranks of its process. Nobody goes on, and changes
  // its tensor, before all have it.
  void share(at::Tensor& tensor, int64_t number, double& wait_s) {
    if (local_ == nullptr) {
      return;
    }
    const MessageTag tag{kShareMessage, key_, number, 0, 0, own_.lane()};
    if (own_.rank() == leader_) {
      for (const int rank : locals_) {
        if (rank != leader_) {
          own_.inner().send(rank, tag, tensor);
        }
      }
    } else {
      const Fingerprint expected = fingerprint_of(tensor);
      Transfer moved;
      const at::Tensor sum = own_.inner().receive(leader_, tag, &expected, &moved);
      wait_s += moved.wait_s;
      std::memcpy(tensor.data_ptr(), sum.data_ptr(), tensor.nbytes());
    }
    wait_s += local_->barrier().wait_s;
  }

  Member& own_;
  const std::vector<int> ranks_;
  const std::string name_;
  int32_t key_ = 0;
  std::vector<int> leaders_;    // the first member in each process
  std::vector<int> processes_;  // theirs
  std::vector<int> host_of_leader_;
  std::vector<int> locals_;
  int leader_ = 0;                // of this process
  int index_ = 0;                 // this process's, among the leaders
  std::unique_ptr<Group> local_;  // null when there is one member here
  ChooseCollective choose_;
  std::shared_ptr<const Codec> codec_;
  std::unique_ptr<NativeReduction> native_;
  std::map<std::pair<std::string, int64_t>, std::unique_ptr<MemberProgram>> programs_;
  at::Tensor scratch_;
  int64_t sequence_ = 0;
};

std::unique_ptr<Group> JoinedWorld::Member::group(const std::vector<int>& ranks, int stage) {
  const bool all_local =
      std::all_of(ranks.begin(), ranks.end(), [this](int rank) { return is_local(rank); });
  const bool valid =
      std::find(ranks.begin(), ranks.end(), rank_) != ranks.end() &&
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end() &&
      ranks.front() >= 0 && ranks.back() < world_size();
  if (all_local || !valid) {
    return inner_->group(ranks, stage);  // which also says what is wrong
  }
  int64_t call = 0;
  {
    const std::lock_guard lock(state_->groups_mutex);
    call = state_->num_groups[{lane_, stage, ranks, rank_}]++;
  }
  std::vector<std::string> parts;
  for (const int rank : ranks) {
    parts.push_back(std::to_string(rank));
  }
  const std::string name =
      fmt::format("{}{}ranks {} #{}", lane_ == 0 ? "" : fmt::format("lane {} ", lane_),
                  stage == kNoStage ? "" : fmt::format("stage {} ", stage), join(parts, ","), call);
  return std::make_unique<ReducingGroup>(*this, ranks, stage, name);
}

std::unique_ptr<Communicator> JoinedWorld::communicator(int rank) {
  MILLRACE_CHECK(std::find(state_->local_ranks.begin(), state_->local_ranks.end(), rank) !=
                     state_->local_ranks.end(),
                 fmt::format("rank {} of another process", rank));
  return std::make_unique<Member>(rank, uint16_t{0}, state_);
}

}  // namespace millrace
