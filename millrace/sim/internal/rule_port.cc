#include "millrace/sim/internal/rule_port.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "millrace/base/error.h"

namespace millrace::internal {
namespace {

// Rules speak of elements; StageCost knows bytes. Elements are turned back into bytes in
// proportion, so the element's size cancels out of what is as large as the stage.
constexpr int64_t kElementBytes = 4;

std::string name_of(int member) {
  return member == Port::kServer ? "the server" : fmt::format("member {}", member);
}

}  // namespace

SimPort::SimPort(StagePorts& stage, int member, int rank, double update_s)
    : stage_(stage),
      member_(member),
      rank_(rank),
      update_s_(update_s),
      gradient_{.size = stage.num_elements_},
      current_{.size = stage.num_elements_},
      weights_{.size = stage.num_elements_} {}

int SimPort::stage() const { return stage_.stage(); }
int SimPort::num_members() const { return stage_.num_members(); }
int SimPort::node_of(int member) const {
  return stage_.nodes_.at(static_cast<std::size_t>(member));
}
int64_t SimPort::num_elements() const { return stage_.num_elements_; }

void SimPort::begin_task(Task task, double at_s) {
  task_ = std::move(task);
  started_ = false;
  now_s_ = at_s;
}

bool SimPort::go_on() {
  if (!started_) {
    started_ = true;
    task_->start();
  } else if (ready()) {
    std::exchange(waiter_, nullptr).resume();
    task_->rethrow();
  }
  if (!task_->done()) {
    return false;
  }
  task_.reset();
  return true;
}

void SimPort::run_aside(Task task, double at_s) {
  now_s_ = at_s;
  aside_ = true;
  task.start();
  aside_ = false;
  MILLRACE_CHECK(task.done() && now_s_ == at_s,
                 "a rule waited for others while the backward still ran");
}

Vector& SimPort::make_vector(int64_t size) { return vectors_.emplace_back(Vector{.size = size}); }

void SimPort::charge(int64_t elements) {
  if (!aside_ && stage_.num_elements_ > 0) {
    now_s_ += static_cast<double>(elements) / static_cast<double>(stage_.num_elements_) *
              (update_s_ / kPassesOfAnUpdate);
  }
}

void SimPort::apply(Vector& /*gradient*/, double samples) {
  MILLRACE_CHECK(samples > 0, "an update over no samples");
  now_s_ += aside_ ? 0 : update_s_;
}

void SimPort::apply_to(Vector& /*delta*/, Vector& gradient, double samples) {
  apply(gradient, samples);
}

// --- messages

void SimPort::send(int to, int kind, const Vector* vector, const Numbers& numbers) {
  Letter letter{.from = this,
                .to = &stage_.port(to),
                .sent_s = now_s_,
                .number = stage_.num_letters_++,
                .message = {.from = member_, .kind = kind, .numbers = numbers}};
  if (vector != nullptr) {
    letter.size = vector->size;
    letter.bytes = std::llround(stage_.bytes_of(vector->size));
  }
  bytes_ += letter.bytes;
  stage_.host_.dispatch(letter);
}

void SimPort::give(int to, int kind, Vector& vector, const Numbers& numbers) {
  send(to, kind, &vector, numbers);
}

void SimPort::deliver(const Letter& letter) {
  inbox_.push_back(letter);
  if (!waits_) {
    return;
  }
  if (want_.kind == Want::kAny) {
    stage_.host_.wake(*this, std::max(now_s_, letter.arrival_s), true);
  } else if (want_.kind == Want::kFrom && !woken_ && wanted_letter() != inbox_.end()) {
    woken_ = true;
    stage_.host_.wake(*this, std::max(now_s_, letter.arrival_s), false);
  }
}

bool SimPort::look_at(double time_s) {
  const bool looks = waits_ && (want_.kind == Want::kAny || want_.kind == Want::kPoll);
  if (!looks || time_s < now_s_) {
    return false;
  }
  look_s_ = time_s;
  return true;
}

SimPort::Inbox::iterator SimPort::wanted_letter() {
  if (want_.kind == Want::kFrom) {
    // Those of one sender and kind stand in the order of sending.
    return std::find_if(inbox_.begin(), inbox_.end(), [this](const Letter& letter) {
      return letter.message.from == want_.from && letter.message.kind == want_.message_kind;
    });
  }
  const auto place = [](const Letter& letter) {
    return std::tuple(letter.arrival_s, letter.message.from, letter.number);
  };
  auto first = inbox_.end();
  for (auto letter = inbox_.begin(); letter != inbox_.end(); ++letter) {
    if (letter->arrival_s <= *look_s_ &&
        (first == inbox_.end() || place(*letter) < place(*first))) {
      first = letter;
    }
  }
  return first;
}

Message SimPort::open(const Inbox::iterator& letter) {
  MILLRACE_CHECK(
      !letter->size || want_.vector != nullptr,
      fmt::format("a message of kind {} from {} has a vector, and {} takes none",
                  letter->message.kind, name_of(letter->message.from), name_of(member_)));
  if (letter->size) {
    want_.vector->size = *letter->size;
  }
  now_s_ = std::max(now_s_, letter->arrival_s);
  wait_s_ += now_s_ - asked_s_;
  const Message message = letter->message;
  inbox_.erase(letter);
  return message;
}

void SimPort::expect_order() const {
  MILLRACE_CHECK(stage_.host_.keeps_order(),
                 "a rule takes messages in their order of arrival without the trait kOrdered");
}

// --- reductions

int SimPort::make_group(const std::vector<int>& members) {
  MILLRACE_CHECK(std::find(members.begin(), members.end(), member_) != members.end(),
                 "a group without the member that makes it");
  const auto nth = std::count_if(groups_.begin(), groups_.end(), [&](const Membership& membership) {
    return membership.group->members == members;
  });
  groups_.push_back({&stage_.group(members, static_cast<int>(nth)), 0});
  return static_cast<int>(groups_.size()) - 1;
}

Meeting& SimPort::ask(Range range, int group, bool in_background) {
  Membership& membership = groups_.at(static_cast<std::size_t>(group));
  std::deque<Meeting>& meetings = membership.group->meetings;
  if (membership.num_asked == meetings.size()) {
    meetings.push_back({.group = membership.group, .range = range, .in_background = in_background});
  }
  Meeting& meeting = meetings[membership.num_asked++];
  MILLRACE_CHECK(
      meeting.range == range && meeting.in_background == in_background,
      fmt::format("replicas of stage {} reduce different ranges: [{}, {}) and [{}, {})", stage(),
                  meeting.range.begin, meeting.range.end, range.begin, range.end));
  ++meeting.num_asked;
  meeting.asked_s = std::max(meeting.asked_s, now_s_);
  bytes_ += std::llround(stage_.bytes_of(range.size()));
  if (in_background) {
    lane_.push_back(&meeting);
    meeting.lanes.emplace_back(this, lane_.size() - 1);
  }
  stage_.meet(meeting);
  return meeting;
}

int64_t SimPort::start_all_reduce(Vector& /*vector*/, Range range, int group) {
  ask(range, group, true);
  return static_cast<int64_t>(lane_.size()) - 1;
}

// --- waiting

// The first time that what is wanted is asked for.
bool SimPort::begin_waiting() {
  if (waits_) {
    return false;
  }
  waits_ = true;
  woken_ = false;
  asked_s_ = now_s_;
  look_s_.reset();
  wanted_ = nullptr;
  return true;
}

bool SimPort::ready() {
  const bool is_new = begin_waiting();
  switch (want_.kind) {
    case Want::kFrom:
      return wanted_letter() != inbox_.end();
    case Want::kAny:
    case Want::kPoll:
      if (is_new) {
        expect_order();
        look_when_first_is_here();
      }
      return look_s_ && (want_.kind == Want::kPoll || wanted_letter() != inbox_.end());
    case Want::kReduction:
      if (is_new) {
        wanted_ = &ask(want_.range, want_.group, false);
      }
      return wanted_->end_s.has_value();
    case Want::kStarted:
      wanted_ = lane_.at(static_cast<std::size_t>(want_.number));
      return wanted_->end_s.has_value();
  }
  return false;
}

// A poll looks at once; else with the first of those that are here or on their way, as deliver()
// tells of others.
void SimPort::look_when_first_is_here() {
  const auto first =
      std::min_element(inbox_.begin(), inbox_.end(),
                       [](const Letter& a, const Letter& b) { return a.arrival_s < b.arrival_s; });
  if (want_.kind == Want::kPoll) {
    stage_.host_.wake(*this, now_s_, true);
  } else if (first != inbox_.end()) {
    stage_.host_.wake(*this, std::max(now_s_, first->arrival_s), true);
  }
}

Message SimPort::take() {
  waits_ = false;
  if (want_.kind == Want::kReduction || want_.kind == Want::kStarted) {
    wait_s_ += std::max(wanted_->asked_s - asked_s_, 0.0);
    now_s_ = std::max(now_s_, *wanted_->end_s);
    return {};
  }
  const auto letter = wanted_letter();
  return letter == inbox_.end() ? Message{.here = false} : open(letter);
}

std::string SimPort::describe_wait() const {
  switch (want_.kind) {
    case Want::kFrom:
      return fmt::format("for a message of kind {} from {}", want_.message_kind,
                         name_of(want_.from));
    case Want::kAny:
    case Want::kPoll:
      return "for a message from anybody";
    case Want::kReduction:
      return fmt::format("for the other replicas, for a reduction of {} members",
                         groups_.at(static_cast<std::size_t>(want_.group)).group->members.size());
    case Want::kStarted:
      return fmt::format("for the other replicas, for reduction {} in the background",
                         want_.number);
  }
  return {};
}

// --- one stage

StagePorts::StagePorts(PortHost& host, int stage, const std::vector<Member>& members,
                       int64_t parameter_bytes, bool serves)
    : host_(host),
      stage_(stage),
      parameter_bytes_(parameter_bytes),
      num_elements_((parameter_bytes + kElementBytes - 1) / kElementBytes) {
  std::vector<int> everybody;
  std::map<int, int> number_of;  // of each node
  for (std::size_t member = 0; member < members.size(); ++member) {
    const auto [node, rank, update_s] =
        std::tuple(members[member].node, members[member].rank, members[member].update_s);
    everybody.push_back(static_cast<int>(member));
    nodes_.push_back(number_of.try_emplace(node, static_cast<int>(number_of.size())).first->second);
    ports_.push_back(std::make_unique<SimPort>(*this, everybody.back(), rank, update_s));
  }
  for (const std::unique_ptr<SimPort>& port : ports_) {
    port->groups_.push_back({&group(everybody, 0), 0});
  }
  if (serves) {
    server_ = std::make_unique<SimPort>(*this, Port::kServer, members.front().rank,
                                        members.front().update_s);
  }
}

SimPort& StagePorts::port(int member) {
  MILLRACE_CHECK(member == Port::kServer ? serves() : member >= 0 && member < num_members(),
                 fmt::format("no {} in stage {}", name_of(member), stage_));
  return member == Port::kServer ? *server_ : *ports_[static_cast<std::size_t>(member)];
}

std::vector<std::string> StagePorts::untaken() const {
  std::vector<std::string> texts;
  const auto add = [&texts](const SimPort& port) {
    for (const Letter& letter : port.inbox_) {
      texts.push_back(fmt::format("of kind {} from {} to {}", letter.message.kind,
                                  name_of(letter.message.from), name_of(port.member_)));
    }
  };
  for (const std::unique_ptr<SimPort>& port : ports_) {
    add(*port);
  }
  if (serves()) {
    add(*server_);
  }
  return texts;
}

double StagePorts::bytes_of(int64_t elements) const {
  return num_elements_ == 0
             ? static_cast<double>(elements * kElementBytes)
             : static_cast<double>(parameter_bytes_) * static_cast<double>(elements) /
                   static_cast<double>(num_elements_);
}

ReductionGroup& StagePorts::group(const std::vector<int>& members, int nth) {
  ReductionGroup& group = groups_[{members, nth}];
  if (group.members.empty()) {
    group.members = members;
    for (const int member : members) {
      group.ranks.push_back(port(member).rank());
    }
  }
  return group;
}

// Where all have asked, a reduction begins: with the last of them; in the background, besides, not
// before each member's lane is free.
void StagePorts::meet(Meeting& meeting) {
  const ReductionGroup& group = *meeting.group;
  if (meeting.num_asked < static_cast<int>(group.members.size())) {
    return;
  }
  double start_s = meeting.asked_s;
  for (const auto& [port, place] : meeting.lanes) {
    if (place > 0) {
      const std::optional<double>& free_s = port->lane_[place - 1]->end_s;
      if (!free_s) {
        return;
      }
      start_s = std::max(start_s, *free_s);
    }
  }
  meeting.end_s = host_.reduce(group.ranks, start_s, bytes_of(meeting.range.size()));
  for (const int member : group.members) {
    SimPort& port = *ports_[static_cast<std::size_t>(member)];
    if (port.waits_ && port.wanted_ == &meeting && !port.woken_) {
      port.woken_ = true;
      host_.wake(port, std::max(port.now_s_, *meeting.end_s), false);
    }
  }
  for (const auto& [port, place] : meeting.lanes) {
    if (place + 1 < port->lane_.size() && !port->lane_[place + 1]->end_s) {
      Meeting& next = *port->lane_[place + 1];
      meet(next);
    }
  }
}

}  // namespace millrace::internal
