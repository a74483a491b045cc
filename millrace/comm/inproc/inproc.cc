#include "millrace/comm/inproc/inproc.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/comm/inproc/group.h"
#include "millrace/comm/notes.h"

namespace millrace {

// Lock order: `mutex`, then those inside mailboxes and meetings.
struct InprocWorld::State {
  State(int num_ranks, double limit_s)
      : timeout_s(limit_s), spin_s(default_spin_s(num_ranks)), boxes(num_ranks, limit_s) {
    all_ranks.resize(static_cast<std::size_t>(num_ranks));
    std::iota(all_ranks.begin(), all_ranks.end(), 0);
  }

  std::shared_ptr<InprocGroupShared> join_group(int rank, uint16_t lane,
                                                const std::vector<int>& ranks, int stage);
  void abort(const Error& cause);

  struct Forming {
    std::shared_ptr<InprocGroupShared> group;
    std::size_t num_joined = 0;
  };

  const double timeout_s;
  const double spin_s;  // by the whole world: its other ranks want the cores, too
  Mailboxes<at::Tensor> boxes;
  std::vector<int> all_ranks;
  std::mutex mutex;
  // By lane, stage and ranks: how often each rank called, and the groups that not all have joined
  // yet, by the number of the call.
  std::map<std::tuple<uint16_t, int, std::vector<int>, int>, int64_t> num_calls;
  std::map<std::tuple<uint16_t, int, std::vector<int>, int64_t>, Forming> forming;
  std::vector<std::weak_ptr<InprocGroupShared>> groups;  // to wake on abort
  NoteQueue notes;
};

std::shared_ptr<InprocGroupShared> InprocWorld::State::join_group(int rank, uint16_t lane,
                                                                  const std::vector<int>& ranks,
                                                                  int stage) {
  std::lock_guard lock(mutex);
  const int64_t call = num_calls[{lane, stage, ranks, rank}]++;
  const auto entry = forming.try_emplace({lane, stage, ranks, call}).first;
  if (entry->second.group == nullptr) {
    std::erase_if(groups, [](const auto& group) { return group.expired(); });
    // Those who meet beside the workers leave them the cores.
    entry->second.group = std::make_shared<InprocGroupShared>(ranks, timeout_s, boxes.abort_flag(),
                                                              lane == 0 ? spin_s : 0);
    groups.push_back(entry->second.group);
  }
  std::shared_ptr<InprocGroupShared> group = entry->second.group;
  if (++entry->second.num_joined == ranks.size()) {
    forming.erase(entry);  // from here on its members keep it alive
  }
  return group;
}

void InprocWorld::State::abort(const Error& cause) {
  boxes.abort(cause);
  std::lock_guard lock(mutex);
  for (const std::weak_ptr<InprocGroupShared>& each : groups) {
    if (const auto group = each.lock()) {
      group->meeting().wake();
    }
  }
}

namespace {

Transfer transfer_of(const at::Tensor& tensor, double wait_s) {
  return {wait_s, tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0};
}

}  // namespace

class InprocWorld::Member final : public Communicator {
 public:
  Member(int rank, uint16_t lane, State& world) : rank_(rank), lane_(lane), world_(world) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_.boxes.num_ranks(); }

  Transfer send(int to, const MessageTag& tag, at::Tensor tensor) override {
    const Transfer transfer = transfer_of(tensor, 0);
    const Fingerprint fingerprint = fingerprint_of(tensor);
    world_.boxes.send(rank_, to, tag, fingerprint, std::move(tensor));
    return transfer;
  }

  void expect(int, const MessageTag&, const Fingerprint&) override {}

  at::Tensor receive(int from, const MessageTag& tag, const Fingerprint* expected,
                     Transfer* transfer) override {
    double wait_s = 0;
    at::Tensor tensor = world_.boxes.receive(rank_, from, tag, expected, &wait_s);
    if (transfer != nullptr) {
      *transfer = transfer_of(tensor, wait_s);
    }
    return tensor;
  }

  bool receive_any(uint16_t lane, double wait_s, Arrived& arrived, Transfer* transfer) override {
    Mailboxes<at::Tensor>::Arrival arrival;
    double waited_s = 0;
    const bool found = world_.boxes.receive_any(rank_, lane, wait_s, arrival, &waited_s);
    if (transfer != nullptr) {
      transfer->wait_s += waited_s;
      transfer->bytes += transfer_of(arrival.payload, 0).bytes;
    }
    if (found) {
      arrived = {arrival.from, arrival.tag, std::move(arrival.payload)};
    }
    return found;
  }

  std::unique_ptr<Communicator> on_lane(uint16_t lane) override {
    return std::make_unique<Member>(rank_, lane, world_);
  }

  std::unique_ptr<Group> group(const std::vector<int>& ranks, int stage) override {
    const auto own = std::find(ranks.begin(), ranks.end(), rank_);
    const bool ascending =
        std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
    if (own == ranks.end() || !ascending || ranks.front() < 0 || ranks.back() >= world_size()) {
      std::vector<std::string> parts;
      for (const int rank : ranks) {
        parts.push_back(std::to_string(rank));
      }
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("a group needs ascending ranks from 0 to {} with rank {} among them, "
                              "found [{}]",
                              world_size() - 1, rank_, join(parts, ", ")))
          .at_rank(rank_);
    }
    return std::make_unique<InprocGroup>(world_.join_group(rank_, lane_, ranks, stage),
                                         static_cast<int>(own - ranks.begin()));
  }

  void abort(const Error& cause) override { world_.abort(cause); }

 private:
  const int rank_;
  const uint16_t lane_;  // of its groups
  State& world_;
};

InprocWorld::InprocWorld(int num_ranks, double timeout_s)
    : state_(std::make_unique<State>(num_ranks, timeout_s)) {}

InprocWorld::~InprocWorld() = default;

std::unique_ptr<Communicator> InprocWorld::communicator(int rank) {
  MILLRACE_CHECK(rank >= 0 && rank < state_->boxes.num_ranks(), fmt::format("rank {}", rank));
  return std::make_unique<Member>(rank, uint16_t{0}, *state_);
}

int InprocWorld::num_ranks() const { return state_->boxes.num_ranks(); }

const std::vector<int>& InprocWorld::local_ranks() const { return state_->all_ranks; }

int InprocWorld::process_of(int rank) const {
  MILLRACE_CHECK(rank >= 0 && rank < num_ranks(), fmt::format("rank {}", rank));
  return 0;
}

std::vector<std::string> InprocWorld::exchange(const std::string& own, double /*timeout_s*/) {
  return {own};
}

void InprocWorld::tell(int process, const std::string& text) {
  MILLRACE_CHECK(process == 0, fmt::format("process {}", process));
  state_->notes.put(0, text);
}

void InprocWorld::listen(Listener listener) { state_->notes.listen(std::move(listener)); }

std::vector<RankWait> InprocWorld::waits() const {
  std::vector<RankWait> waits;
  for (const int rank : state_->all_ranks) {
    for (const auto& wait : state_->boxes.waiting(rank)) {
      if (wait.from != Mailboxes<at::Tensor>::kAnybody) {
        waits.push_back(
            {.rank = rank, .from = wait.from, .tag = wait.tag, .waited_s = wait.waited_s});
      }
    }
  }
  return waits;
}

void InprocWorld::deliver(int from, int to, const MessageTag& tag, const Fingerprint& fingerprint,
                          at::Tensor tensor) {
  state_->boxes.send(from, to, tag, fingerprint, std::move(tensor));
}

const AbortFlag& InprocWorld::abort_flag() const { return state_->boxes.abort_flag(); }

void InprocWorld::abort(const Error& cause) { state_->abort(cause); }

std::optional<Error> InprocWorld::first_cause() const { return state_->boxes.abort_flag().cause(); }

std::size_t InprocWorld::held(int rank) const { return state_->boxes.held(rank); }

}  // namespace millrace
